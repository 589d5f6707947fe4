// SPDX-License-Identifier: Apache-2.0
//
// All paths of a small lattice by brute force: the exponential definition that the recursions are
// tested against. It reads the arc table and the logits directly, shares no code with scores.cpp or
// lattice.cpp, and works in plain double logarithms.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/core/variant_table.hpp"
#include "reference/core/view.hpp"
#include "reference/inspection.hpp"

namespace transducer::reference {

/// One utterance, small enough to enumerate. Empty views and spans mean "not given".
struct TinyLattice {
  VariantTable table;                    // bound to K
  View<const double, 3> logits;          // [T, U+1, K]
  std::span<const std::int64_t> labels;  // [U]
  std::int64_t frames = 0;               // T
  bool from_log_probs = false;
  View<const double, 3> arc_scores;      // [T, U+1, A]
  View<const std::int64_t, 2> band;      // [T, 2]
  std::span<const double> start_scores;  // [T]
  std::span<const double> final_scores;  // [T+1]
};

struct EnumeratedPath {
  double weight = 0.0;  ///< with start and final scores
  std::int64_t start_frame = 0;
  std::int64_t end_frame = 0;
  std::vector<PathStep> steps;
};

/// The weight of one arc at (t, u), straight from its definition; -inf where no arc exists.
double arc_weight(const TinyLattice& lattice, std::int64_t t, std::int64_t u, int arc);

/// Every path with a weight above -inf. Throws InvalidArgument past `limit` paths.
std::vector<EnumeratedPath> enumerate_paths(const TinyLattice& lattice,
                                            std::int64_t limit = 1000000);

/// - log sum over paths of e^weight; +inf without a path.
double enumerated_cost(const TinyLattice& lattice);

}  // namespace transducer::reference
