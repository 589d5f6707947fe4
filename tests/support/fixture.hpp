// SPDX-License-Identifier: Apache-2.0
//
// A batch that owns its memory, for tests: fill in what differs from the defaults, call run().
// Everything is float64 and contiguous unless a test builds its own request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "reference/core/request.hpp"
#include "reference/core/validate.hpp"
#include "reference/core/workspace.hpp"
#include "reference/loss.hpp"

namespace transducer::testing {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// 64-byte aligned scratch for a request.
class ScratchBuffer {
 public:
  explicit ScratchBuffer(const WorkspacePlan& plan)
      : memory_(plan.scratch_bytes() + kWorkspaceAlignment), bytes_(plan.scratch_bytes()) {}

  Workspace workspace() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    const std::size_t shift =
        (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment;
    return {.scratch = std::span(memory_).subspan(shift, bytes_), .saved = {}};
  }

 private:
  std::vector<std::byte> memory_;
  std::size_t bytes_;
};

/// Runs the reference with a workspace of exactly the planned size.
inline void run_reference(const LossRequest& request, const LossResult& result,
                          const Options& options = {}) {
  ScratchBuffer scratch(reference::plan_workspace(shape_of(request, result), options));
  reference::loss(request, result, options, scratch.workspace());
}

struct Outcome {
  std::vector<double> costs;  // [B]
  double total = 0.0;
  std::vector<double> logits_gradient;  // [B, T, U+1, K]
  std::vector<double> arc_scores_gradient, start_scores_gradient, final_scores_gradient;
  std::vector<double> arc_weights;    // [B, T, U+1, A]
  std::vector<double> alpha, beta;    // [B, T+1, U+1]
  std::vector<double> arc_posterior;  // [B, T, U+1, A]
  std::vector<double> occupancy;      // [B, T, U+1]
};

/// A dense batch. Lengths default to the full T and U.
struct DenseBatch {
  std::int64_t B = 1, T = 1, U = 0, K = 2;
  VariantTable variant;
  std::vector<double> logits;                                // [B, T, U+1, K]
  std::vector<std::int64_t> targets;                         // [B, U]
  std::vector<std::int64_t> frame_lengths, target_lengths;   // [B]
  std::vector<double> arc_scores;                            // [B, T, U+1, A] or empty
  std::vector<std::int64_t> band;                            // [B, T, 2] or empty
  std::vector<double> start_scores, final_scores, upstream;  // or empty
  Reduction reduction = Reduction::none;
  Semiring semiring = Semiring::log;
  double clamp = 0.0;
  bool zero_infinity = false;
  bool from_log_probs = false;

  std::int64_t A() const { return variant.num_arcs; }

  LossRequest request() {
    if (frame_lengths.empty()) frame_lengths.assign(static_cast<std::size_t>(B), T);
    if (target_lengths.empty()) target_lengths.assign(static_cast<std::size_t>(B), U);
    LossRequest r;
    r.caller = "test";
    r.source = DenseSource{.logits = real(logits, {B, T, U + 1, K})};
    r.targets = index(targets, {B, U});
    r.frame_lengths = index(frame_lengths, {B});
    r.target_lengths = index(target_lengths, {B});
    r.variant = variant;
    if (!arc_scores.empty()) r.arc_scores = real(arc_scores, {B, T, U + 1, A()});
    if (!band.empty()) r.band = index(band, {B, T, 2});
    if (!start_scores.empty()) r.start_scores = real(start_scores, {B, T});
    if (!final_scores.empty()) r.final_scores = real(final_scores, {B, T + 1});
    if (!upstream.empty()) {
      r.upstream = reduction == Reduction::none ? real(upstream, {B}) : real(upstream, {});
    }
    r.reduction = reduction;
    r.semiring = semiring;
    r.clamp = clamp;
    r.zero_infinity = zero_infinity;
    r.from_log_probs = from_log_probs;
    return r;
  }

  /// Every output there is.
  Outcome run(const Options& options = {}) {
    const LossRequest r = request();
    Outcome o;
    LossResult result;
    result.costs = make(o.costs, {B});
    result.total = contiguous_ref(&o.total, DType::float64, {});
    result.logits_gradient = make(o.logits_gradient, {B, T, U + 1, K});
    if (!arc_scores.empty()) {
      result.arc_scores_gradient = make(o.arc_scores_gradient, {B, T, U + 1, A()});
    }
    if (!start_scores.empty()) result.start_scores_gradient = make(o.start_scores_gradient, {B, T});
    if (!final_scores.empty()) {
      result.final_scores_gradient = make(o.final_scores_gradient, {B, T + 1});
    }
    result.arc_weights = make(o.arc_weights, {B, T, U + 1, A()});
    result.alpha = make(o.alpha, {B, T + 1, U + 1});
    result.beta = make(o.beta, {B, T + 1, U + 1});
    result.arc_posterior = make(o.arc_posterior, {B, T, U + 1, A()});
    result.occupancy = make(o.occupancy, {B, T, U + 1});
    run_reference(r, result, options);
    return o;
  }

  static TensorRef real(std::vector<double>& values, std::initializer_list<std::int64_t> extents) {
    return contiguous_ref(values.data(), DType::float64, extents);
  }
  static TensorRef index(std::vector<std::int64_t>& values,
                         std::initializer_list<std::int64_t> extents) {
    return contiguous_ref(values.data(), DType::int64, extents);
  }
  /// Sizes `values` and fills it with a number no output may keep.
  static TensorRef make(std::vector<double>& values, std::initializer_list<std::int64_t> extents) {
    std::int64_t size = 1;
    for (std::int64_t extent : extents) size *= extent;
    values.assign(static_cast<std::size_t>(size), -12345.0);
    return contiguous_ref(values.data(), DType::float64, extents);
  }
};

}  // namespace transducer::testing
