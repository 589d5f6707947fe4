// SPDX-License-Identifier: Apache-2.0
//
// What the stages of the CPU layer share: the compiled call, and one utterance's arrays. Arrays over nodes
// are arc-major with u innermost, so that loops over a frame's nodes are contiguous.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/kernels.hpp"
#include "cpu/parallel.hpp"
#include "reference/core/request.hpp"
#include "reference/core/tap_plan.hpp"
#include "reference/core/validate.hpp"

namespace transducer::cpu {

/// Nodes of a frame that one loop takes at a time.
inline constexpr std::int64_t kBlockNodes = 128;

/// A request compiled once.
struct Call {
  const LossRequest& request;
  const LossResult& result;
  const ValidRequest& valid;
  const TapPlan& plan;
  const Kernels& kernels;
  const Team& team;
};

struct Utterance {
  std::int64_t batch_index = 0;
  std::int64_t frames = 0;                // T
  std::int64_t labels = 0;                // U
  std::span<const std::int64_t> targets;  // [U]
  std::span<std::uint32_t> label_arcs;    // [U+1] arcs_for_label() at each u

  double* arc_weights = nullptr;     // [A, T, U+1]; the posteriors take their place
  double* group_log_sums = nullptr;  // [G, T, U+1]
  double* alpha = nullptr;           // [T+1, U+1]
  double* beta = nullptr;            // [T+1, U+1]
  double* start_scores = nullptr;    // [T+1]
  double* final_scores = nullptr;    // [T+1]

  double cost = 0.0;
  bool feasible = false;
  bool poisoned = false;         ///< NaN or +inf on some path
  bool saw_poison = false;       ///< NaN or +inf in some weight or boundary score
  double skip_threshold = 0.0;   ///< nodes of lower occupancy are left out of the backward
  bool keeps_all = false;        ///< what stands in for gamma may have any sign
  double scale = 1.0;            ///< reduction times upstream
  std::int64_t best_start = -1;  ///< of the best path, in the max semiring
  std::int64_t best_end = -1;

  std::int64_t rows() const { return labels + 1; }
  std::int64_t label(std::int64_t u) const {
    return u < labels ? targets[static_cast<std::size_t>(u)] : -1;
  }
  double* weight_row(int arc, std::int64_t t) const {
    return arc_weights + (arc * frames + t) * rows();
  }
  double* log_sum_row(int group, std::int64_t t) const {
    return group_log_sums + (group * frames + t) * rows();
  }
  double* alpha_row(std::int64_t t) const { return alpha + t * rows(); }
  double* beta_row(std::int64_t t) const { return beta + t * rows(); }
};

}  // namespace transducer::cpu
