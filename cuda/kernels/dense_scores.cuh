// SPDX-License-Identifier: Apache-2.0
//
// Scores of dense logits [B, T, U+1, K]: per node the logits at the taps and the log-sum of each group.
//
// Purpose: node_scores [S, plane] from one read of the logits. Approach: a warp takes a row, or eight lanes do if
// it is short; 64 bytes a lane in flight, a running (max, sum) per lane and group, merged by shuffles.
// Constraint: memory. Rows outside the lengths or the band are not read.
#pragma once

#include "cuda/call_view.hpp"
#include "cuda/device/columns.cuh"
#include "cuda/device/online_lse.cuh"
#include "cuda/device/vector_io.cuh"

namespace transducer::cuda {

inline constexpr int kRowThreads = 256;  // of a block, kLanes of them a row

/// The row of a thread when blocks cover (frame, kRowThreads / kLanes rows).
struct RowPlace {
  std::int64_t frame;
  int b, t, u;
};

template <int kLanes>
__host__ __device__ constexpr unsigned row_groups(int rows) {
  constexpr unsigned kRows = kRowThreads / kLanes;
  return (static_cast<unsigned>(rows) + kRows - 1) / kRows;
}

template <int kLanes>
__device__ __forceinline__ RowPlace row_place(const CallView& call) {
  const unsigned groups = row_groups<kLanes>(call.rows());
  const unsigned frame = blockIdx.x / groups;
  const unsigned b = frame / static_cast<unsigned>(call.frames);
  return {static_cast<std::int64_t>(frame), static_cast<int>(b),
          static_cast<int>(frame - b * static_cast<unsigned>(call.frames)),
          static_cast<int>((blockIdx.x - frame * groups) * (kRowThreads / kLanes) +
                           threadIdx.x / kLanes)};
}

struct DenseScoresParams {
  CallView call;
  const void* logits;  // [B, T, U+1, K]
  std::int64_t strides[4];
  void* node_scores;  // [S, plane]
};

/// Takes N neighbouring columns from k on into the groups' sums.
template <bool kWhole, int N, class Real>
__device__ __forceinline__ void observe_run(const CallView& call, std::int64_t label,
                                            std::int64_t k, const Real (&x)[N],
                                            OnlineLse<Real> (&sums)[kMaxGroups]) {
  if constexpr (kWhole) {
    sums[0].observe(x);
  } else {
#pragma unroll
    for (int g = 0; g < kMaxGroups; ++g) {
      if ((call.plan.read_groups >> g & 1) == 0) continue;
      const Group& group = call.plan.groups[g];
      const Coverage covered = coverage(group, label, k, N);
      if (covered == Coverage::none) continue;
      if (covered == Coverage::all) {
        sums[g].observe(x);
        continue;
      }
      Real inside[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        inside[i] = group_contains(group, k + i, label) ? x[i] : Real(-INFINITY);
      }
      sums[g].observe(inside);
    }
  }
}

/// Which lane takes which columns depends on their number alone, so a row's bits do not depend on its address.
template <class Storage, class Real, bool kWhole, int kLanes>
__device__ void observe_row(const CallView& call, const Storage* row, std::int64_t stride,
                            std::int64_t label, OnlineLse<Real> (&sums)[kMaxGroups]) {
  constexpr int kN = kVector<Storage>;
  constexpr int kAhead = 4;
  const Storage fill = to_storage<Storage>(-INFINITY);
  const RunReader<Storage> reader(row, stride, call.columns);
  std::int64_t k = static_cast<std::int64_t>(threadIdx.x) % kLanes * kN;
  for (std::int64_t first = 0; first + kAhead * kLanes * kN <= call.columns;
       first += kAhead * kLanes * kN, k += kAhead * kLanes * kN) {
    Vector<Storage> loaded[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) reader.read(k + j * kLanes * kN, fill, loaded[j]);
    if constexpr (kWhole) {
      Real x[kAhead * kN];
#pragma unroll
      for (int i = 0; i < kAhead * kN; ++i) x[i] = to_real<Real>(loaded[i / kN].element[i % kN]);
      sums[0].observe(x);
    } else {
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        Real x[kN];
#pragma unroll
        for (int i = 0; i < kN; ++i) x[i] = to_real<Real>(loaded[j].element[i]);
        observe_run<kWhole>(call, label, k + j * kLanes * kN, x, sums);
      }
    }
  }
  for (; k < call.columns; k += kLanes * kN) {
    Vector<Storage> loaded;
    reader.read(k, fill, loaded);
    Real x[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) x[i] = to_real<Real>(loaded.element[i]);
    observe_run<kWhole>(call, label, k, x, sums);
  }
}

__device__ __forceinline__ float softplus_of(float x) {
  return x > 0.0f ? x + log1pf(expf(-x)) : log1pf(expf(x));
}
__device__ __forceinline__ double softplus_of(double x) {
  return x > 0.0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

template <class Storage, class Real, bool kWhole, int kLanes>
__global__ void __launch_bounds__(kRowThreads)
    dense_scores_kernel(const __grid_constant__ DenseScoresParams p) {
  const CallView& call = p.call;
  const RowPlace at = row_place<kLanes>(call);
  const int frames = call.frames_of(at.b);
  const unsigned lanes = __ballot_sync(~0u, at.t < frames && at.u <= call.labels_of(at.b));
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if ((lanes >> threadIdx.x % 32 & 1u) == 0) return;
  const std::int64_t label = call.label_of(at.b, at.u);
  const Storage* row = static_cast<const Storage*>(p.logits) + at.b * p.strides[0] +
                       at.t * p.strides[1] + at.u * p.strides[2];
  OnlineLse<Real> sums[kMaxGroups];
  if (call.is_allowed(at.b, at.t, at.u, frames)) {
    observe_row<Storage, Real, kWhole, kLanes>(call, row, p.strides[3], label, sums);
  }
  Real* out = static_cast<Real*>(p.node_scores) + call.node(at.b, at.t, at.u);
  for (int i = lane; i < call.plan.num_taps; i += kLanes) {
    const std::int64_t k = call.plan.tap_column(i, label);
    const bool reads = (i < call.plan.num_fixed || label >= 0) && k >= 0 && k < call.columns;
    out[call.tap_plane(i) * call.plane] =
        reads ? to_real<Real>(row[k * p.strides[3]]) : Real(-INFINITY);
  }
#pragma unroll
  for (int g = 0; g < (kWhole ? 1 : kMaxGroups); ++g) {
    if (g >= call.plan.num_groups) break;
    sums[g].template merge_lanes<kLanes>(lanes);
    const Real log_sum = sums[g].log_z();
    const bool bernoulli = call.plan.groups[g].normaliser == Normaliser::bernoulli;
    if (lane == 0) {
      out[call.group_plane(g) * call.plane] = bernoulli ? softplus_of(log_sum) : log_sum;
    }
  }
}

}  // namespace transducer::cuda
