// SPDX-License-Identifier: Apache-2.0
//
// The reference's memory: one utterance at a time, everything in double.
#include <limits>

#include "reference/core/workspace.hpp"
#include "reference/loss.hpp"

namespace transducer::reference {

WorkspacePlan plan_workspace(const LossShape& shape, const Options& options) {
  (void)options;  // sequential: the plan depends on nothing but the shape
  constexpr auto kScratch = RegionKind::scratch;
  constexpr std::size_t kDouble = sizeof(double);
  check(shape.batch >= 0 && shape.frames >= 0 && shape.labels >= 0 && shape.columns >= 1 &&
            shape.hidden >= 0,
        "plan_workspace: B, T, U and H must be 0 or more and K at least 1, got B = ", shape.batch,
        ", T = ", shape.frames, ", U = ", shape.labels, ", K = ", shape.columns,
        ", H = ", shape.hidden);
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  check(shape.frames < kMax && shape.labels < kMax,
        "plan_workspace: T + 1 and U + 1 do not fit in 63 bits, got T = ", shape.frames,
        ", U = ", shape.labels);
  const std::int64_t nodes = checked_product(shape.frames, shape.labels + 1);
  const std::int64_t all_nodes = checked_product(shape.frames + 1, shape.labels + 1);
  const std::int64_t arcs = checked_product(nodes, shape.arcs);

  WorkspacePlan plan;
  plan.book("targets", "[U] int64", kScratch, shape.labels, sizeof(std::int64_t));
  plan.book("start_scores", "[T+1] float64", kScratch, shape.frames + 1, kDouble);
  plan.book("final_scores", "[T+1] float64", kScratch, shape.frames + 1, kDouble);
  plan.book("arc_weights", "[T, U+1, A] float64", kScratch, arcs, kDouble);
  plan.book("arc_exists", "[T, U+1] uint32", kScratch, nodes, sizeof(std::uint32_t));
  plan.book("group_log_sums", "[T, U+1, G] float64", kScratch, checked_product(nodes, shape.groups),
            kDouble);
  plan.book("reachable", "[T+1, U+1] uint8", kScratch, all_nodes, 1);
  plan.book("alpha", "[T+1, U+1] float64", kScratch, all_nodes, kDouble);
  plan.book("beta", "[T+1, U+1] float64", kScratch, all_nodes, kDouble);
  plan.book("arc_posterior", "[T, U+1, A] float64", kScratch, arcs, kDouble);
  plan.book("logits", "[K] float64", kScratch, shape.columns, kDouble);
  if (shape.gradient) {
    plan.book("arc_flow", "[T, U+1, A] float64", kScratch, arcs, kDouble);
    plan.book("logits_gradient", "[K] float64", kScratch, shape.columns, kDouble);
    plan.book("arc_scores_gradient", "arc_scores, float64", kScratch, shape.arc_scores, kDouble);
  }
  if (shape.hidden == 0) return plan;

  const std::int64_t hidden = shape.hidden;
  const std::int64_t weight = checked_product(shape.columns, hidden);
  plan.book("weight", "[K, H] float64", kScratch, weight, kDouble);
  plan.book("bias", "[K] float64", kScratch, shape.columns, kDouble);
  plan.book("joint_sum", "[H] float64", kScratch, hidden, kDouble);
  plan.book("joint_hidden", "[H] float64", kScratch, hidden, kDouble);
  plan.book("dropout_factor", "[H] float64", kScratch, hidden, kDouble);
  if (shape.gradient) {
    plan.book("encoder_gradient", "[T, H] float64", kScratch, checked_product(shape.frames, hidden),
              kDouble);
    plan.book("predictor_gradient", "[U+1, H] float64", kScratch,
              checked_product(shape.labels + 1, hidden), kDouble);
    plan.book("weight_gradient", "[K, H] float64", kScratch, weight, kDouble);
    plan.book("bias_gradient", "[K] float64", kScratch, shape.columns, kDouble);
  }
  const std::int64_t joint = checked_product(checked_product(shape.batch, nodes), shape.columns);
  plan.note_never_made("logits", "[B, T, U+1, K]",
                       static_cast<std::size_t>(checked_product(
                           joint, static_cast<std::int64_t>(dtype_bytes(shape.dtype)))));
  return plan;
}

}  // namespace transducer::reference
