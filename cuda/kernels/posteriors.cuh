// SPDX-License-Identifier: Apache-2.0
//
// Posteriors gamma(arc) = alpha(src) w beta(dst) / total in place of the weights, and of starts and ends;
// occupancies counted by their power of two, from which the rows of the backward follow.
//
//   posteriors   arcs [A, plane]; histogram [B, kBins]; path_mass [B] = expected number of arcs of a path
//   thresholds   per utterance the largest power of two below which all nodes together hold at most skip_mass
//                times that number; counts are integers, so the cut depends on no order
//   best_path    the max semiring: 1 on the best path, 0 elsewhere; ties as docs/math.md breaks them
#pragma once

#include "cuda/device/frames.cuh"
#include "cuda/kernels/lattice.cuh"

namespace transducer::cuda {

/// Probability that a path leaves node n by an arc: the same sum, in the same order, everywhere.
template <class Real>
__device__ __forceinline__ Real occupancy_of(const CallView& call, const Real* arcs,
                                             std::int64_t n) {
  Real sum = 0;
  for (int a = 0; a < call.plan.num_arcs; ++a) sum += arcs[a * call.plane + n];
  return sum;
}

/// Bin of an occupancy > 0: bin i holds [2^(i - 126), 2^(i - 125)).
__device__ __forceinline__ int occupancy_bin(float occupancy) {
  return min(max((__float_as_int(occupancy) >> 23) - 1, 0), kBins - 1);
}
__device__ __forceinline__ double bin_upper(int bin) { return ldexp(1.0, bin - 125); }

template <class Number, class Real>
__global__ void __launch_bounds__(32 * kFrameWarps)
    posteriors_kernel(const __grid_constant__ LatticeParams<Real> p) {
  using State = typename Number::State;
  __shared__ std::uint32_t bins[kBins];
  __shared__ unsigned long long mass;
  const CallView& call = p.call;
  const int thread = static_cast<int>(threadIdx.y * 32 + threadIdx.x);
  for (int i = thread; i < kBins; i += 32 * kFrameWarps) bins[i] = 0;
  if (thread == 0) mass = 0;
  __syncthreads();
  unsigned long long own_mass = 0;
  for_each_frame(call.frames, [&](int b, int t) {
    const int frames = call.frames_of(b);
    const int labels = call.labels_of(b);
    if (t >= frames) return;
    const std::int64_t width = call.rows();
    const std::int64_t ends = (b * static_cast<std::int64_t>(call.frames + 1) + t) * width;
    const State* alpha = static_cast<const State*>(p.memory.alpha) + ends;
    const State* beta = static_cast<const State*>(p.memory.beta) + ends;
    const auto total = Number::unpack(static_cast<const State*>(p.totals)[b]);
    const int state = p.memory.state[b];
    for (int u = static_cast<int>(threadIdx.x); u <= labels; u += 32) {
      const std::int64_t n = call.node(b, t, u);
      const auto here = Number::unpack(alpha[u]);
      Real occupancy = 0;
      for (int a = 0; a < call.plan.num_arcs; ++a) {
        const int dt = call.plan.arcs[a].dt;
        const int du = call.plan.arcs[a].du;
        Real& arc = p.memory.arcs[a * call.plane + n];
        const Real weight = arc;
        Real gamma = 0;
        if (state == kPoisoned) {
          gamma = NAN;
        } else if (state == kFeasible && weight != Real(-INFINITY)) {
          gamma = Number::share(here, weight, Number::unpack(beta[dt * width + u + du]), total);
        }
        arc = gamma;
        occupancy += gamma;
      }
      if (occupancy > Real(0)) {
        atomicAdd(&bins[occupancy_bin(static_cast<float>(occupancy))], 1u);
        own_mass += static_cast<unsigned long long>(occupancy * Real(1 << 24));
      }
    }
  });
  if (own_mass != 0) atomicAdd(&mass, own_mass);
  __syncthreads();
  const int utterance =
      static_cast<int>(blockIdx.x) / ((call.frames + kFramesPerBlock - 1) / kFramesPerBlock);
  for (int i = thread; i < kBins; i += 32 * kFrameWarps) {
    if (bins[i] != 0) {
      atomicAdd(&p.memory.histogram[static_cast<std::int64_t>(utterance) * kBins + i], bins[i]);
    }
  }
  if (thread == 0 && mass != 0) atomicAdd(&p.memory.path_mass[utterance], mass);
}

/// A warp an utterance; lane i takes bins 4 i to 4 i + 3.
template <class Real>
__global__ void thresholds_kernel(const __grid_constant__ LatticeParams<Real> p, double skip_mass) {
  const int b = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  if (b >= p.call.batch) return;
  const int lane = static_cast<int>(threadIdx.x);
  const std::uint32_t* counts = p.memory.histogram + static_cast<std::int64_t>(b) * kBins;
  double masses[4];
  double own = 0.0;
  for (int i = 0; i < 4; ++i) {
    own += counts[4 * lane + i] * bin_upper(4 * lane + i);
    masses[i] = own;
  }
  double before = own;
  for (int step = 1; step < 32; step *= 2) {
    const double other = __shfl_up_sync(~0u, before, step);
    if (lane >= step) before += other;
  }
  before -= own;
  const double limit = skip_mass * static_cast<double>(p.memory.path_mass[b]) * ldexp(1.0, -24);
  int fitting = 0;
  for (int i = 0; i < 4; ++i) fitting += before + masses[i] <= limit ? 1 : 0;
  const unsigned whole = __ballot_sync(~0u, fitting == 4);
  const int full = whole == ~0u ? 32 : __ffs(static_cast<int>(~whole)) - 1;  // leading lanes
  const int partial = full < 32 ? __shfl_sync(~0u, fitting, full) : 0;
  const int leading = 4 * full + partial;
  if (lane == 0) {
    p.memory.threshold[b] = skip_mass > 0.0 && leading > 0 ? bin_upper(leading - 1) : 0.0;
  }
}

/// Start and final posteriors in place of the scores: a warp an utterance.
template <class Number, class Real>
__global__ void boundary_posteriors_kernel(const __grid_constant__ LatticeParams<Real> p) {
  using State = typename Number::State;
  const CallView& call = p.call;
  const int b = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  if (b >= call.batch) return;
  const int frames = call.frames_of(b);
  const int labels = call.labels_of(b);
  const std::int64_t ends = b * static_cast<std::int64_t>(call.frames + 1);
  const State* alpha = static_cast<const State*>(p.memory.alpha) + ends * call.rows();
  const State* beta = static_cast<const State*>(p.memory.beta) + ends * call.rows();
  const double log_total = Number::log_of(Number::unpack(static_cast<const State*>(p.totals)[b]));
  const bool feasible = p.memory.state[b] == kFeasible;
  for (int t = static_cast<int>(threadIdx.x); t <= call.frames; t += 32) {
    const std::int64_t row = static_cast<std::int64_t>(t) * call.rows();
    double start = 0.0;
    double final = 0.0;
    if (feasible && t <= frames) {
      start = exp(p.memory.start_scores[ends + t] + Number::log_of(Number::unpack(beta[row])) -
                  log_total);
      final = exp(p.memory.final_scores[ends + t] +
                  Number::log_of(Number::unpack(alpha[row + labels])) - log_total);
    }
    p.memory.start_scores[ends + t] = start;
    p.memory.final_scores[ends + t] = final;
  }
}

/// Follows the best path from its end: a thread an utterance. Steps (node, arc) go where beta was.
template <class Real>
__global__ void best_path_kernel(const __grid_constant__ LatticeParams<Real> p) {
  const CallView& call = p.call;
  const int b = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (b >= call.batch) return;
  const int frames = call.frames_of(b);
  const std::int64_t width = call.rows();
  const std::int64_t ends = b * static_cast<std::int64_t>(call.frames + 1);
  const double* alpha = static_cast<const double*>(p.memory.alpha) + ends * width;
  auto* steps = static_cast<std::int64_t*>(p.memory.beta) + ends * width;
  double* start = p.memory.start_scores + ends;
  double* final = p.memory.final_scores + ends;
  int best_start = -1;
  int best_end = -1;
  std::int64_t length = 0;
  if (p.memory.state[b] == kFeasible) {
    int t = 0;
    int u = call.labels_of(b);
    while (final[t] == -INFINITY || alpha[t * width + u] + final[t] != 0.0 - p.memory.costs[b]) ++t;
    best_end = t;
    while (u > 0 || start[t] != alpha[t * width + u]) {
      const double want = alpha[t * width + u];
      for (int a = 0; a < call.plan.num_arcs; ++a) {
        const int from_t = t - call.plan.arcs[a].dt;
        const int from_u = u - call.plan.arcs[a].du;
        if (from_t < 0 || from_u < 0 || from_t >= frames) continue;
        const std::int64_t n = call.node(b, from_t, from_u);
        const double weight = p.memory.arcs[a * call.plane + n];
        if (alpha[from_t * width + from_u] + weight != want) continue;
        steps[++length] = n * kMaxArcs + a;
        t = from_t;
        u = from_u;
        break;
      }
    }
    best_start = t;
  }
  steps[0] = length;
  for (int t = 0; t <= call.frames; ++t) {
    start[t] = t == best_start ? 1.0 : 0.0;
    final[t] = t == best_end ? 1.0 : 0.0;
  }
}

template <class Real>
__global__ void __launch_bounds__(32 * kFrameWarps)
    clear_arcs_kernel(const __grid_constant__ LatticeParams<Real> p) {
  const CallView& call = p.call;
  for_each_frame(call.frames, [&](int b, int t) {
    if (t >= call.frames_of(b)) return;
    const Real value = p.memory.state[b] == kPoisoned ? Real(NAN) : Real(0);
    for (int u = static_cast<int>(threadIdx.x); u <= call.labels_of(b); u += 32) {
      for (int a = 0; a < call.plan.num_arcs; ++a) {
        p.memory.arcs[a * call.plane + call.node(b, t, u)] = value;
      }
    }
  });
}

template <class Real>
__global__ void mark_path_kernel(const __grid_constant__ LatticeParams<Real> p) {
  const CallView& call = p.call;
  const std::int64_t b = blockIdx.x;
  const auto* steps =
      static_cast<const std::int64_t*>(p.memory.beta) + b * (call.frames + 1) * call.rows();
  for (std::int64_t i = threadIdx.x + 1; i <= steps[0]; i += blockDim.x) {
    p.memory.arcs[steps[i] % kMaxArcs * call.plane + steps[i] / kMaxArcs] = Real(1);
  }
}

}  // namespace transducer::cuda
