// SPDX-License-Identifier: Apache-2.0
//
// What a call hands out besides the gradients of logits: costs and their total, lattice quantities, and the
// gradients that pass through no logit. Totals add float64 costs in utterance order; every other sum has a
// fixed order too.
#pragma once

#include "cuda/device/tensor.cuh"
#include "cuda/kernels/posteriors.cuh"
#include "reference/core/request.hpp"

namespace transducer::cuda {

struct CostsParams {
  CallView call;
  const double* costs;  // [B]
  TensorRef out;        // [B], optional
  TensorRef total;      // [], optional
  TensorRef upstream;   // [B] or [], optional
  double* scale;        // [B], optional
  Reduction reduction;
  bool zero_infinity;
};

/// 1 / the reduction's denominator; one block.
__device__ inline double reduction_factor(const CallView& call, Reduction reduction) {
  if (reduction == Reduction::mean) return 1.0 / max(call.batch, 1);
  if (reduction != Reduction::mean_target && reduction != Reduction::mean_frame) return 1.0;
  __shared__ unsigned long long sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  unsigned long long own = 0;
  for (int b = static_cast<int>(threadIdx.x); b < call.batch; b += static_cast<int>(blockDim.x)) {
    own += static_cast<unsigned long long>(reduction == Reduction::mean_target ? call.labels_of(b)
                                                                               : call.frames_of(b));
  }
  atomicAdd(&sum, own);
  __syncthreads();
  return 1.0 / static_cast<double>(max(sum, 1ull));
}

/// One block: costs in the caller's type, their total, and what multiplies each utterance's gradient.
static __global__ void costs_kernel(const __grid_constant__ CostsParams p) {
  constexpr int kChunk = 1024;
  __shared__ double chunk[kChunk];
  const double factor = reduction_factor(p.call, p.reduction);
  double total = 0.0;
  for (int first = 0; first < p.call.batch; first += kChunk) {
    const int count = min(kChunk, p.call.batch - first);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
      const int b = first + i;
      double cost = p.costs[b];
      if (p.zero_infinity && cost == INFINITY) cost = 0.0;
      chunk[i] = cost;
      if (p.out.rank >= 0) store_real(p.out, tensor_offset(p.out, b), cost);
      if (p.scale != nullptr) {
        const std::int64_t at = p.reduction == Reduction::none ? b : 0;
        p.scale[b] =
            factor *
            (p.upstream.rank < 0 ? 1.0 : load_real(p.upstream, tensor_offset(p.upstream, at)));
      }
    }
    __syncthreads();
    if (threadIdx.x == 0 && p.total.rank >= 0) {
      for (int i = 0; i < count; ++i) total += chunk[i];
    }
  }
  if (threadIdx.x == 0 && p.total.rank >= 0) store_real(p.total, 0, total * factor);
}

/// Log of the states of alpha or beta into [B, T+1, U+1], -inf outside the lengths.
template <class Number>
__global__ void __launch_bounds__(32 * kFrameWarps)
    write_states_kernel(const __grid_constant__ CallView call, const void* states,
                        const __grid_constant__ TensorRef out) {
  using State = typename Number::State;
  for_each_frame(call.frames + 1, [&](int b, int t) {
    const bool inside = t <= call.frames_of(b);
    const int labels = call.labels_of(b);
    const State* row = static_cast<const State*>(states) +
                       (b * static_cast<std::int64_t>(call.frames + 1) + t) * call.rows();
    for (int u = static_cast<int>(threadIdx.x); u <= call.labels; u += 32) {
      const double value =
          inside && u <= labels ? Number::log_of(Number::unpack(row[u])) : -INFINITY;
      store_real(out, tensor_offset(out, b, t, u), value);
    }
  });
}

template <class Real>
struct ArcOutputParams {
  CallView call;
  Memory<Real> memory;
  TensorRef out;        // [B, T, U+1, A], or [B, T, U+1] for occupancy
  const double* scale;  // [B]: the output is minus the scaled posterior; nullptr: as it is
  double padding;
};

/// Planes of arcs into [B, T, U+1, A].
template <class Real>
__global__ void __launch_bounds__(32 * kFrameWarps)
    write_arcs_kernel(const __grid_constant__ ArcOutputParams<Real> p) {
  const CallView& call = p.call;
  for_each_frame(call.frames, [&](int b, int t) {
    const int labels = t < call.frames_of(b) ? call.labels_of(b) : -1;
    const double factor = p.scale == nullptr ? 1.0 : -p.scale[b];
    for (int u = static_cast<int>(threadIdx.x); u <= call.labels; u += 32) {
      for (int a = 0; a < call.plan.num_arcs; ++a) {
        double value = p.padding;
        if (u <= labels) {
          value = p.memory.arcs[a * call.plane + call.node(b, t, u)];
          value = value == 0.0 ? 0.0 : value * factor;
        }
        store_real(p.out, tensor_offset(p.out, b, t, u, a), value);
      }
    }
  });
}

template <class Real>
__global__ void __launch_bounds__(32 * kFrameWarps)
    write_occupancy_kernel(const __grid_constant__ ArcOutputParams<Real> p) {
  const CallView& call = p.call;
  for_each_frame(call.frames, [&](int b, int t) {
    const int labels = t < call.frames_of(b) ? call.labels_of(b) : -1;
    const int state = p.memory.state[b];
    for (int u = static_cast<int>(threadIdx.x); u <= call.labels; u += 32) {
      double value = 0.0;
      if (u <= labels && state != kInfeasible) {
        for (int a = 0; a < call.plan.num_arcs; ++a) {
          value += p.memory.arcs[a * call.plane + call.node(b, t, u)];
        }
        if (u == labels && state == kFeasible) {
          value += p.memory.final_scores[b * static_cast<std::int64_t>(call.frames + 1) + t];
        }
      }
      store_real(p.out, tensor_offset(p.out, b, t, u), value);
    }
  });
}

/// Occupancy that the backward leaves out: a block an utterance, thread i adds nodes i, i + 256, ... in order.
template <class Real>
__global__ void __launch_bounds__(256)
    skipped_mass_kernel(const __grid_constant__ ArcOutputParams<Real> p) {
  __shared__ double sums[256];
  const CallView& call = p.call;
  const int b = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t width = call.labels_of(b) + 1;
  const std::int64_t nodes = call.frames_of(b) * width;
  const double threshold = p.memory.threshold[b];
  double sum = 0.0;
  for (std::int64_t i = thread; i < nodes && threshold > 0.0; i += 256) {
    const Real occupancy = occupancy_of(call, p.memory.arcs, call.node(b, i / width, i % width));
    if (static_cast<double>(occupancy) < threshold) sum += occupancy;
  }
  sums[thread] = sum;
  for (int half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  if (thread == 0) store_real(p.out, tensor_offset(p.out, b), sums[0]);
}

template <class Real>
struct BoundaryGradientParams {
  CallView call;
  Memory<Real> memory;
  TensorRef start;  // [B, T], optional
  TensorRef final;  // [B, T+1], optional
};

template <class Real>
__global__ void boundary_gradients_kernel(const __grid_constant__ BoundaryGradientParams<Real> p) {
  const CallView& call = p.call;
  const int b = static_cast<int>(blockIdx.x);
  const int frames = call.frames_of(b);
  const std::int64_t ends = b * static_cast<std::int64_t>(call.frames + 1);
  const int state = p.memory.state[b];
  const auto gradient = [&](bool read, double posterior) {
    if (!read || frames == 0 || state == kInfeasible) return 0.0;
    if (state == kPoisoned) return static_cast<double>(NAN);
    return posterior == 0.0 ? 0.0 : -posterior * p.memory.scale[b];
  };
  for (int t = static_cast<int>(threadIdx.x); t <= call.frames; t += static_cast<int>(blockDim.x)) {
    if (p.start.rank >= 0 && t < call.frames) {
      store_real(p.start, tensor_offset(p.start, b, t),
                 gradient(t < frames, p.memory.start_scores[ends + t]));
    }
    if (p.final.rank >= 0) {
      store_real(p.final, tensor_offset(p.final, b, t),
                 gradient(t <= frames, p.memory.final_scores[ends + t]));
    }
  }
}

/// An axis of [B, T, U+1, A] that arc_scores broadcasts over has stride 0: its gradient is summed there.
template <class Real>
struct ArcScoresGradientParams {
  CallView call;
  Memory<Real> memory;
  TensorRef out;            // [B, T, U+1, A] with stride 0 on summed axes
  std::int64_t extents[4];  // B, T, U+1, A
  std::int64_t kept[4];     // extents of the axes that stay, 1 for summed ones
  std::int64_t summed[4];   // extents of the summed axes, 1 for those that stay
  std::int64_t num_elements;
  std::int64_t num_summed;
};

__device__ inline void split_index(std::int64_t flat, const std::int64_t (&extents)[4],
                                   std::int64_t (&index)[4]) {
#pragma unroll
  for (int axis = 3; axis >= 0; --axis) {
    index[axis] = flat % extents[axis];
    flat /= extents[axis];
  }
}

/// `threads` (1 or 256, the block's x) share an element's sum; blockDim.y elements a block.
template <class Real>
__global__ void __launch_bounds__(256)
    arc_scores_gradient_kernel(const __grid_constant__ ArcScoresGradientParams<Real> p) {
  __shared__ double sums[256];
  const CallView& call = p.call;
  const std::int64_t element = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  std::int64_t at[4];
  split_index(element, p.kept, at);
  double sum = 0.0;
  if (element < p.num_elements) {
    for (std::int64_t i = threadIdx.x; i < p.num_summed; i += blockDim.x) {
      std::int64_t along[4];
      split_index(i, p.summed, along);
      const std::int64_t b = at[0] + along[0];
      const auto t = static_cast<int>(at[1] + along[1]);
      const auto u = static_cast<int>(at[2] + along[2]);
      const std::int64_t a = at[3] + along[3];
      if (t >= call.frames_of(b) || u > call.labels_of(b)) continue;
      const double gamma = p.memory.arcs[a * call.plane + call.node(b, t, u)];
      if (gamma != 0.0) sum -= isnan(gamma) ? gamma : gamma * p.memory.scale[b];
    }
  }
  if (blockDim.x > 1) {
    const int thread = static_cast<int>(threadIdx.x);
    sums[thread] = sum;
    for (int half = 128; half > 0; half /= 2) {
      __syncthreads();
      if (thread < half) sums[thread] += sums[thread + half];
    }
    sum = sums[0];
  }
  if (threadIdx.x == 0 && element < p.num_elements) {
    store_real(p.out, tensor_offset(p.out, at[0], at[1], at[2], at[3]), sum);
  }
}

}  // namespace transducer::cuda
