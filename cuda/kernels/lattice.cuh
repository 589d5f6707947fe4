// SPDX-License-Identifier: Apache-2.0
//
// Alpha and beta of any arc table, and the total over all paths.
//
//   alpha(t, u) = start(t) [u = 0] + sum over arcs alpha(t - dt, u - du) w        [B, T+1, U+1] states
//   beta(t, u)  = final(t) [u = U] + sum over arcs w beta(t + dt, u + du)
//
// Purpose: every table, every semiring. Approach: a block takes one sweep of one utterance, a diagonal t + u
// at a time, a thread each u; the last max(dt + du) diagonals are in shared memory where they fit. Constraint:
// the latency of T + U barriers. Two-move tables have kernels of their own in lattice_strips.cuh.
#pragma once

#include "cuda/call_view.hpp"
#include "cuda/device/number.cuh"
#include "cuda/memory.hpp"

namespace transducer::cuda {

template <class Real>
struct LatticeParams {
  CallView call;
  Memory<Real> memory;
  void* totals;  // [B] states
};

template <class Number, class Real, bool kShared>
__global__ void sweep_kernel(const __grid_constant__ LatticeParams<Real> p, int diagonals) {
  using State = typename Number::State;
  extern __shared__ float2 history_memory[];
  const CallView& call = p.call;
  const int b = static_cast<int>(blockIdx.x) / 2;
  const bool backward = blockIdx.x % 2 != 0;
  const int frames = call.frames_of(b);
  const int labels = call.labels_of(b);
  const int width = call.rows();
  const std::int64_t ends = b * static_cast<std::int64_t>(call.frames + 1);
  State* states = static_cast<State*>(backward ? p.memory.beta : p.memory.alpha) + ends * width;
  State* history = reinterpret_cast<State*>(history_memory);
  const double* boundary = (backward ? p.memory.final_scores : p.memory.start_scores) + ends;
  const int boundary_u = backward ? labels : 0;
  const auto slot = [&](int t, int u) { return (t + u) % diagonals * width + u; };

  for (int step = 0; step <= frames + labels; ++step) {
    const int d = backward ? frames + labels - step : step;
    for (int u = static_cast<int>(threadIdx.x); u <= min(labels, d);
         u += static_cast<int>(blockDim.x)) {
      const int t = d - u;
      if (t > frames) continue;
      auto sum = u == boundary_u ? Number::from_log(boundary[t]) : Number::zero();
      for (int a = 0; a < call.plan.num_arcs; ++a) {
        const int dt = call.plan.arcs[a].dt;
        const int du = call.plan.arcs[a].du;
        const int other_t = backward ? t + dt : t - dt;
        const int other_u = backward ? u + du : u - du;
        const int from_t = backward ? t : other_t;
        const int from_u = backward ? u : other_u;
        if (other_t < 0 || other_u < 0 || other_t > frames || other_u > labels) continue;
        if (from_t >= frames) continue;
        const Real weight = p.memory.arcs[a * call.plane + call.node(b, from_t, from_u)];
        if (weight == Real(-INFINITY)) continue;
        const State other = kShared ? history[slot(other_t, other_u)]
                                    : states[static_cast<std::int64_t>(other_t) * width + other_u];
        sum = Number::plus(sum, Number::times(Number::unpack(other), weight));
      }
      const State state = Number::pack(sum);
      if (kShared) history[slot(t, u)] = state;
      states[static_cast<std::int64_t>(t) * width + u] = state;
    }
    __syncthreads();
  }
}

__device__ __forceinline__ Scaled shuffle_xor(Scaled a, int mask) {
  return {__shfl_xor_sync(~0u, a.m, mask), __shfl_xor_sync(~0u, a.e, mask)};
}
__device__ __forceinline__ double shuffle_xor(double a, int mask) {
  return __shfl_xor_sync(~0u, a, mask);
}

/// Total, cost and state of an utterance: a warp each.
template <class Number, class Real>
__global__ void finish_kernel(const __grid_constant__ LatticeParams<Real> p, bool ends_given) {
  using State = typename Number::State;
  const CallView& call = p.call;
  const int b = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  if (b >= call.batch) return;
  const int frames = call.frames_of(b);
  const int labels = call.labels_of(b);
  const std::int64_t ends = b * static_cast<std::int64_t>(call.frames + 1);
  const State* alpha = static_cast<const State*>(p.memory.alpha) + ends * call.rows();
  auto total = Number::zero();
  // Without final scores every path ends at t = T.
  for (int t = (ends_given ? 0 : frames) + static_cast<int>(threadIdx.x); t <= frames; t += 32) {
    const double score = p.memory.final_scores[ends + t];
    if (score == -INFINITY) continue;
    const auto end = Number::unpack(alpha[static_cast<std::int64_t>(t) * call.rows() + labels]);
    total = Number::plus(total, Number::product(end, Number::from_log(score)));
  }
  for (int mask = 16; mask > 0; mask /= 2) total = Number::plus(total, shuffle_xor(total, mask));
  if (threadIdx.x != 0) return;
  static_cast<State*>(p.totals)[b] = Number::pack(total);
  if (p.memory.state[b] == kPoisoned) {
    p.memory.costs[b] = NAN;
    return;
  }
  p.memory.state[b] = Number::is_zero(total) ? kInfeasible : kFeasible;
  p.memory.costs[b] = 0.0 - Number::log_of(total);
}

}  // namespace transducer::cuda
