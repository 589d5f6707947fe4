// SPDX-License-Identifier: Apache-2.0
//
// What a person wants to see of a lattice, one utterance at a time: the best path, the entropy of
// the distribution over paths, when each label is emitted on average, how often each arc is taken
// and how much each group's normaliser counts. Formulas: docs/math.md#inspection.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/core/request.hpp"

namespace transducer::reference {

/// One arc of a path, at its source node.
struct PathStep {
  std::int64_t t = 0;
  std::int64_t u = 0;
  int arc = 0;
  double weight = 0.0;
};

/// The path of largest weight. Ties are broken from the end: the earliest end, then at each node a
/// start before any arc, then the incoming arc of lowest index.
struct BestPath {
  bool exists = false;
  double score =
      0.0;  ///< weight with start and final scores; -inf if no path exists, NaN if poisoned
  std::int64_t start_frame = 0;
  std::int64_t end_frame = 0;
  std::vector<PathStep> steps;
};

struct Inspection {
  BestPath best_path;
  double cost = 0.0;
  double entropy = 0.0;                 ///< of the distribution over paths, in nats
  std::vector<double> expected_frames;  // [U] mean frame of each emission; NaN without a path
  std::vector<double> arc_counts;       // [A] expected number of times each arc is taken
  std::vector<double> group_occupancy;  // [T, U+1, G] - sum over columns of s c_g gamma
};

/// Best path of every utterance; needs no gradient outputs. The request's semiring is not read.
std::vector<BestPath> best_paths(const LossRequest& request, const Options& options);

/// Everything above for every utterance, in the log semiring.
std::vector<Inspection> inspect(const LossRequest& request, const Options& options);

}  // namespace transducer::reference
