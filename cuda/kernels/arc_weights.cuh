// SPDX-License-Identifier: Apache-2.0
//
// From node scores to arc weights, and what else the lattice starts from:
//
//   prepare      per utterance: label_arcs [B, U+1], start and final scores [B, T+1], cleared counters
//   arc_weights  w(arc) = sum of taps + sum c_g Z_g + constant + frame_bonus ((T-1)/2 - t) + arc_scores into
//                arcs [A, plane]; -inf where an arc does not exist, NaN where it reads NaN or +inf
//   settle       only for utterances that showed some poison: does it lie on a path? then the cost is NaN;
//                every other poisoned weight becomes -inf, so that the recursions never see it
#pragma once

#include "cuda/device/existence.cuh"
#include "cuda/device/frames.cuh"
#include "cuda/memory.hpp"

namespace transducer::cuda {

template <class Real>
struct ArcWeightsParams {
  CallView call;
  Memory<Real> memory;
  TensorRef arc_scores;    // [B, T, U+1, A] broadcast, optional
  TensorRef arc_weights;   // [B, T, U+1, A] with an ArcWeightSource
  TensorRef start_scores;  // [B, T], optional
  TensorRef final_scores;  // [B, T+1], optional
};

template <class Real>
struct PrepareParams {
  ArcWeightsParams<Real> call;
  VariantTable table;  // bound
  bool from_log_probs;
};

/// Start and final score of time t, -inf outside the band.
template <class Real>
__device__ double2 boundary_scores(const ArcWeightsParams<Real>& p, int b, int t, int frames,
                                   int labels) {
  const CallView& call = p.call;
  double2 score = {t == 0 ? 0.0 : -INFINITY, t == frames ? 0.0 : -INFINITY};
  if (t > frames) return {-INFINITY, -INFINITY};
  if (frames == 0) return score;  // start and final scores are not read
  if (p.start_scores.rank >= 0) {
    score.x =
        t < frames ? load_real(p.start_scores, tensor_offset(p.start_scores, b, t)) : -INFINITY;
  }
  if (p.final_scores.rank >= 0) {
    score.y = load_real(p.final_scores, tensor_offset(p.final_scores, b, t));
  }
  if (!call.is_allowed(b, t, 0, frames)) score.x = -INFINITY;
  if (!call.is_allowed(b, t, labels, frames)) score.y = -INFINITY;
  return score;
}

/// A block an utterance.
template <class Real>
__global__ void prepare_kernel(const __grid_constant__ PrepareParams<Real> p) {
  const CallView& call = p.call.call;
  const Memory<Real>& memory = p.call.memory;
  const int b = static_cast<int>(blockIdx.x);
  const int frames = call.frames_of(b);
  const int labels = call.labels_of(b);
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  for (int i = thread; i < kBins; i += threads) memory.histogram[b * std::int64_t{kBins} + i] = 0;
  bool poison = false;
  for (int u = thread; u <= call.labels; u += threads) {
    memory.label_arcs[b * static_cast<std::int64_t>(call.rows()) + u] =
        call.from_arc_weights ? ~0u
                              : arcs_for_label(p.table, call.label_of(b, u), p.from_log_probs);
  }
  for (int t = thread; t <= call.frames; t += threads) {
    const double2 score = boundary_scores(p.call, b, t, frames, labels);
    const std::int64_t i = b * static_cast<std::int64_t>(call.frames + 1) + t;
    memory.start_scores[i] = score.x;
    memory.final_scores[i] = score.y;
    poison = poison || is_poison(score.x) || is_poison(score.y);
  }
  poison = __syncthreads_or(poison) != 0;
  if (thread != 0) return;
  memory.saw_poison[b] = poison ? 1 : 0;
  memory.path_mass[b] = 0;
  const bool lengths_fit = call.frame_lengths(b) == frames && call.target_lengths(b) == labels;
  memory.state[b] = lengths_fit ? kFeasible : kPoisoned;
}

/// The part of an arc's weight that the logits decide; NaN if it reads NaN or +inf.
template <class Real>
__device__ Real weight_from_scores(const CallView& call, const PlannedArc& arc,
                                   const Real* scores) {
  Real weight = static_cast<Real>(arc.constant);
  bool poisoned = false;
  bool absent = false;
  for (int i = 0; i < arc.num_columns; ++i) {
    const PlannedColumn& column = arc.columns[i];
    const int from =
        column.tap >= 0 ? call.tap_plane(column.tap) : call.group_plane(column.log_sum);
    Real value = scores[from * call.plane];
    poisoned = poisoned || is_poison(value);
    const int read = column.subtract | column.add;
    for (int g = 0; read >> g != 0; ++g) {
      if ((read >> g & 1) == 0) continue;
      const Real z = scores[call.group_plane(g) * call.plane];
      poisoned = poisoned || is_poison(z);
      absent = absent || z == Real(-INFINITY);
      value += (column.subtract >> g & 1) != 0 ? -z : z;
    }
    weight += value;
  }
  if (poisoned) return NAN;
  return absent ? Real(-INFINITY) : weight;
}

template <class Real>
__device__ Real arc_weight(const ArcWeightsParams<Real>& p, int a, int b, int t, int u, int frames,
                           const Real* scores) {
  const CallView& call = p.call;
  if (call.from_arc_weights) {
    const double weight = load_real(p.arc_weights, tensor_offset(p.arc_weights, b, t, u, a));
    return is_poison(weight) ? Real(NAN) : static_cast<Real>(weight);
  }
  Real score = 0;
  if (p.arc_scores.rank >= 0) {
    score = static_cast<Real>(load_real(p.arc_scores, tensor_offset(p.arc_scores, b, t, u, a)));
    if (score == Real(-INFINITY)) return score;  // masked, whatever the logits hold
    if (is_poison(score)) return NAN;
  }
  const PlannedArc& arc = call.plan.arcs[a];
  const Real weight = weight_from_scores(call, arc, scores);
  if (arc.frame_bonus == 0.0) return weight + score;
  const double to_middle = (frames - 1.0) / 2.0 - t;
  return weight + static_cast<Real>(arc.frame_bonus * to_middle) + score;
}

template <class Real>
__global__ void __launch_bounds__(32 * kFrameWarps)
    arc_weights_kernel(const __grid_constant__ ArcWeightsParams<Real> p) {
  const CallView& call = p.call;
  for_each_frame(call.frames, [&](int b, int t) {
    const int frames = call.frames_of(b);
    const int labels = call.labels_of(b);
    if (t >= frames) return;
    bool poison = false;
    for (int u = static_cast<int>(threadIdx.x); u <= labels; u += 32) {
      const std::int64_t n = call.node(b, t, u);
      const std::uint32_t exist =
          p.memory.label_arcs[b * static_cast<std::int64_t>(call.rows()) + u];
      for (int a = 0; a < call.plan.num_arcs; ++a) {
        Real weight = -INFINITY;
        if (arc_fits(call, exist, a, b, t, u, frames, labels)) {
          weight = arc_weight(p, a, b, t, u, frames, p.memory.node_scores + n);
        }
        p.memory.arcs[a * call.plane + n] = weight;
        poison = poison || is_poison(weight);
      }
    }
    if (poison) p.memory.saw_poison[b] = 1;
  });
}

/// A block an utterance, a diagonal at a time. `from_start` and `to_end` [B, T+1, U+1] lie where alpha and
/// beta will.
template <class Real>
__global__ void settle_kernel(const __grid_constant__ ArcWeightsParams<Real> p) {
  const CallView& call = p.call;
  const int b = static_cast<int>(blockIdx.x);
  if (p.memory.saw_poison[b] == 0) return;
  const int frames = call.frames_of(b);
  const int labels = call.labels_of(b);
  const int width = call.rows();
  const std::int64_t ends = b * static_cast<std::int64_t>(call.frames + 1);
  auto* from_start = static_cast<std::uint8_t*>(p.memory.alpha) + ends * width;
  auto* to_end = static_cast<std::uint8_t*>(p.memory.beta) + ends * width;
  const std::uint32_t* label_arcs = p.memory.label_arcs + b * static_cast<std::int64_t>(width);
  double* start = p.memory.start_scores + ends;
  double* final = p.memory.final_scores + ends;
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const auto at = [&](int t, int u) { return static_cast<std::int64_t>(t) * width + u; };
  const auto exists = [&](int a, int t, int u) {
    return arc_exists(call, label_arcs[u], a, b, t, u, frames, labels, p.arc_scores, p.memory.arcs);
  };
  for (int d = 0; d <= frames + labels; ++d) {
    for (int u = thread; u <= min(labels, d); u += threads) {
      const int t = d - u;
      if (t > frames) continue;
      bool reached = u == 0 && start[t] != -INFINITY;
      for (int a = 0; a < call.plan.num_arcs && !reached; ++a) {
        const int from_t = t - call.plan.arcs[a].dt;
        const int from_u = u - call.plan.arcs[a].du;
        if (from_t < 0 || from_u < 0 || from_t >= frames) continue;
        reached = from_start[at(from_t, from_u)] != 0 && exists(a, from_t, from_u);
      }
      from_start[at(t, u)] = reached ? 1 : 0;
    }
    __syncthreads();
  }
  for (int d = frames + labels; d >= 0; --d) {
    for (int u = thread; u <= min(labels, d); u += threads) {
      const int t = d - u;
      if (t > frames) continue;
      bool reached = u == labels && final[t] != -INFINITY;
      for (int a = 0; a < call.plan.num_arcs && t < frames && !reached; ++a) {
        const int to_t = t + call.plan.arcs[a].dt;
        const int to_u = u + call.plan.arcs[a].du;
        if (to_t > frames || to_u > labels) continue;
        reached = to_end[at(to_t, to_u)] != 0 && exists(a, t, u);
      }
      to_end[at(t, u)] = reached ? 1 : 0;
    }
    __syncthreads();
  }
  bool poisoned = false;
  for (int t = thread; t <= frames; t += threads) {
    if (is_poison(start[t])) {
      poisoned = poisoned || to_end[at(t, 0)] != 0;
      start[t] = -INFINITY;
    }
    if (is_poison(final[t])) {
      poisoned = poisoned || from_start[at(t, labels)] != 0;
      final[t] = -INFINITY;
    }
  }
  __syncthreads();
  for (int t = 0; t < frames; ++t) {
    for (int u = thread; u <= labels; u += threads) {
      for (int a = 0; a < call.plan.num_arcs; ++a) {
        Real& weight = p.memory.arcs[a * call.plane + call.node(b, t, u)];
        if (!is_poison(weight)) continue;
        const PlannedArc& arc = call.plan.arcs[a];
        poisoned =
            poisoned || (from_start[at(t, u)] != 0 && to_end[at(t + arc.dt, u + arc.du)] != 0);
        weight = -INFINITY;
      }
    }
  }
  if (__syncthreads_or(poisoned) != 0 && thread == 0) p.memory.state[b] = kPoisoned;
}

}  // namespace transducer::cuda
