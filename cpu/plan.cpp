// SPDX-License-Identifier: Apache-2.0
//
// The CPU layer's memory: the lattices of as many utterances as fit into kWaveBytes (at least one), and
// row or tile buffers for each thread.
#include <algorithm>

#include "cpu/joint.hpp"
#include "cpu/loss.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rows.hpp"
#include "cpu/wave.hpp"

namespace transducer::cpu {
namespace {

constexpr std::int64_t kWaveBytes = std::int64_t{16} << 20;

/// Bytes of one utterance's lattice arrays.
std::int64_t utterance_bytes(const LossShape& shape) {
  const std::int64_t nodes = checked_product(shape.frames + 1, shape.labels + 1);
  return checked_product(nodes, std::int64_t{8} * (shape.arcs + shape.groups + 2));
}

}  // namespace

std::int64_t wave_size(const LossShape& shape) {
  const std::int64_t fit = kWaveBytes / std::max<std::int64_t>(utterance_bytes(shape), 1);
  return std::clamp<std::int64_t>(fit, 1, std::max<std::int64_t>(shape.batch, 1));
}

WorkspacePlan plan_workspace(const LossShape& shape, const Options& options) {
  check(shape.batch >= 0 && shape.frames >= 0 && shape.labels >= 0 && shape.columns >= 1 &&
            shape.hidden >= 0,
        "plan_workspace: B, T, U and H must be 0 or more and K at least 1, got B = ", shape.batch,
        ", T = ", shape.frames, ", U = ", shape.labels, ", K = ", shape.columns,
        ", H = ", shape.hidden);
  constexpr auto kScratch = RegionKind::scratch;
  constexpr std::size_t kDouble = sizeof(double);
  const std::int64_t wave = wave_size(shape);
  const std::int64_t rows = shape.labels + 1;
  const std::int64_t nodes = checked_product(wave, checked_product(shape.frames, rows));
  const std::int64_t all_nodes = checked_product(wave, checked_product(shape.frames + 1, rows));
  const std::int64_t threads = thread_count(options);

  WorkspacePlan plan;
  plan.book("targets", "[wave, U] int64", kScratch, checked_product(wave, shape.labels), 8);
  plan.book("label_arcs", "[wave, U+1] uint32", kScratch, checked_product(wave, rows), 4);
  plan.book("start_scores", "[wave, T+1] float64", kScratch,
            checked_product(wave, shape.frames + 1), kDouble);
  plan.book("final_scores", "[wave, T+1] float64", kScratch,
            checked_product(wave, shape.frames + 1), kDouble);
  plan.book("arc_weights", "[wave, A, T, U+1] float64", kScratch,
            checked_product(nodes, shape.arcs), kDouble);
  plan.book("group_log_sums", "[wave, G, T, U+1] float64", kScratch,
            checked_product(nodes, shape.groups), kDouble);
  plan.book("alpha", "[wave, T+1, U+1] float64", kScratch, all_nodes, kDouble);
  plan.book("beta", "[wave, T+1, U+1] float64", kScratch, all_nodes, kDouble);
  plan.book("lattice_rows", "threads x [2, U+1] float64", kScratch,
            checked_product(2 * threads, rows), kDouble);
  plan.book("logit_rows", "threads x [K + max(K, 2048)] float64", kScratch,
            checked_product(threads, row_buffer_size(shape.columns)), kDouble);
  if (shape.gradient) {
    plan.book("arc_scores_gradient", "arc_scores, float64", kScratch, shape.arc_scores, kDouble);
  }
  if (shape.apart) {
    plan.book("saved_scores", "[B, A+G, T, U+1] float64", RegionKind::saved,
              checked_product(checked_product(shape.batch, shape.frames * rows),
                              shape.arcs + shape.groups),
              kDouble);
  }
  if (shape.hidden > 0) plan_joint(shape, static_cast<int>(threads), plan);
  return plan;
}

}  // namespace transducer::cpu
