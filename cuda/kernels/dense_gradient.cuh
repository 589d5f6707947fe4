// SPDX-License-Identifier: Apache-2.0
//
// Gradient of dense logits [B, T, U+1, K]: per kept node
//
//   g_k = sum over groups  coefficient_g e^(x_k - log_sum_g)  +  corrections at the taps
//
// clamped, times scale[b]; zeros at all other nodes, padding included; NaN where the cost is NaN.
// Purpose: one read of the kept rows, one write of all. Approach: a warp, or eight lanes, take a row; every element is read
// and written by one lane, so the gradient may lie over the logits; the few tap columns are put right by a
// second store. Constraint: memory.
#pragma once

#include "cuda/device/row_flow.cuh"
#include "cuda/kernels/dense_scores.cuh"
#include "cuda/lattice_view.hpp"

namespace transducer::cuda {

template <class Real>
struct DenseGradientParams {
  CallView call;
  LatticeView<Real> lattice;
  const void* logits;  // [B, T, U+1, K]
  std::int64_t strides[4];
  void* gradient;  // [B, T, U+1, K]
  std::int64_t out_strides[4];
};

template <int kLanes, class Storage>
__device__ void fill_row(Storage* row, std::int64_t stride, std::int64_t columns, float value) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const Storage element = to_storage<Storage>(value);
  const RowParts parts = row_parts(row, columns, stride == 1);
  Vector<Storage> vector;
#pragma unroll
  for (int i = 0; i < kVector<Storage>; ++i) vector.element[i] = element;
  for (std::int64_t v = lane; v < parts.vectors; v += kLanes) {
    store_vector(row + parts.head + v * kVector<Storage>, vector);
  }
  for (std::int64_t k = lane; k < parts.head; k += kLanes) row[k * stride] = element;
  for (std::int64_t k = parts.tail + lane; k < columns; k += kLanes) row[k * stride] = element;
}

/// What a group adds to the gradient of a column with logit x that it holds.
template <class Real>
__device__ __forceinline__ Real group_part(const Group& group, Real coefficient, Real log_sum,
                                           Real x) {
  return coefficient * (group.normaliser == Normaliser::bernoulli ? Real(1) / (Real(1) + exp_of(-x))
                                                                  : exp_of(x - log_sum));
}

/// The softmax part of the gradient of column k with logit x.
template <bool kWhole, class Real>
__device__ __forceinline__ Real softmax_part(const CallView& call, const RowFlow<Real>& flow,
                                             std::int64_t label, std::int64_t k, Real x) {
  if constexpr (kWhole) {
    return flow.coefficient[0] * exp_of(x - flow.log_sum[0]);
  } else {
    Real sum = 0;
#pragma unroll
    for (int g = 0; g < kMaxGroups; ++g) {
      if (flow.coefficient[g] == Real(0)) continue;
      const Group& group = call.plan.groups[g];
      if (!group_contains(group, k, label)) continue;
      sum += group_part(group, flow.coefficient[g], flow.log_sum[g], x);
    }
    return sum;
  }
}

template <class Real>
struct Finish {
  const CallView& call;
  Real limit;
  Real scale;

  __device__ __forceinline__ Real operator()(std::int64_t k, Real g) const {
    if (limit > Real(0) && (call.plan.unclamped_groups == 0 || column_is_clamped(call.plan, k))) {
      g = fmin(fmax(g, -limit), limit);
    }
    return g == Real(0) ? Real(0) : g * scale;
  }
};

/// Logits of neighbouring columns from k on into their gradients, taps aside.
template <class Storage, class Real, bool kWhole>
__device__ __forceinline__ void transform_run(const CallView& call, const RowFlow<Real>& flow,
                                              const Finish<Real>& finish, std::int64_t label,
                                              std::int64_t k, Vector<Storage>& vector) {
  constexpr int kN = kVector<Storage>;
  Real sum[kN];
  if constexpr (kWhole) {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const Real x = to_real<Real>(vector.element[i]);
      sum[i] = flow.coefficient[0] * exp_of(x - flow.log_sum[0]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kN; ++i) sum[i] = 0;
#pragma unroll
    for (int g = 0; g < kMaxGroups; ++g) {
      if (flow.coefficient[g] == Real(0)) continue;
      const Group& group = call.plan.groups[g];
      const Coverage covered = coverage(group, label, k, kN);
      if (covered == Coverage::none) continue;
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        if (covered == Coverage::some && !group_contains(group, k + i, label)) continue;
        sum[i] += group_part(group, flow.coefficient[g], flow.log_sum[g],
                             to_real<Real>(vector.element[i]));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kN; ++i) vector.element[i] = to_storage<Storage>(finish(k + i, sum[i]));
}

template <class Storage, class Real, bool kWhole, int kLanes>
__global__ void __launch_bounds__(kRowThreads)
    dense_gradient_kernel(const __grid_constant__ DenseGradientParams<Real> p) {
  constexpr int kTaps = 2;  // a lane's; the host chooses kLanes so that they suffice
  const CallView& call = p.call;
  const RowPlace at = row_place<kLanes>(call);
  const unsigned lanes = __ballot_sync(
      ~0u, at.u <= call.labels && p.lattice.kept.contains(at.frame, min(at.u, call.labels)));
  if (at.u > call.labels) return;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t stride = p.strides[3];
  const std::int64_t out_stride = p.out_strides[3];
  Storage* out = static_cast<Storage*>(p.gradient) + at.b * p.out_strides[0] +
                 at.t * p.out_strides[1] + at.u * p.out_strides[2];
  if ((lanes >> threadIdx.x % 32 & 1u) == 0) {
    fill_row<kLanes>(out, out_stride, call.columns, 0.0f);
    return;
  }
  if (p.lattice.state[at.b] == kPoisoned) {
    fill_row<kLanes>(out, out_stride, call.columns, NAN);
    return;
  }
  const Storage* row = static_cast<const Storage*>(p.logits) + at.b * p.strides[0] +
                       at.t * p.strides[1] + at.u * p.strides[2];
  const std::int64_t label = call.label_of(at.b, at.u);
  const std::int64_t node = call.node(at.b, at.t, at.u);
  RowFlow<Real> flow;
  collect_flow(call, p.lattice, node, flow);
  const Finish<Real> finish{call, static_cast<Real>(call.clamp),
                            static_cast<Real>(p.lattice.scale[at.b])};
  // The lanes of one row, which all came this far.
  const unsigned mine =
      kLanes == 32 ? ~0u : ((1u << (kLanes % 32)) - 1u) << (threadIdx.x % 32 / kLanes * kLanes);

  // Tap columns: their gradients are worked out before any logit is overwritten.
  std::int64_t tap_columns[kTaps];
  Real tap_values[kTaps];
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    tap_columns[i] = -1;
    const int tap = lane + kLanes * i;
    if (tap >= call.plan.num_taps) continue;
    const Real correction = tap_correction(call, p.lattice, node, label, tap, &tap_columns[i]);
    if (tap_columns[i] < 0) continue;
    const std::int64_t k = tap_columns[i];
    const Real x = to_real<Real>(row[k * stride]);
    tap_values[i] = finish(k, softmax_part<kWhole>(call, flow, label, k, x) + correction);
  }
  __syncwarp(mine);

  constexpr int kN = kVector<Storage>;
  constexpr int kAhead = 4;
  const bool in_vectors = stride == 1 && out_stride == 1 &&
                          unaligned_head(row) == unaligned_head(static_cast<const Storage*>(out));
  const RowParts parts = row_parts(row, call.columns, in_vectors);
  for (std::int64_t first = lane; first < parts.vectors; first += kLanes * kAhead) {
    Vector<Storage> vectors[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const std::int64_t v = first + kLanes * j;
      if (v < parts.vectors) vectors[j] = load_vector(row + parts.head + v * kN);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const std::int64_t v = first + kLanes * j;
      if (v >= parts.vectors) continue;
      transform_run<Storage, Real, kWhole>(call, flow, finish, label, parts.head + v * kN,
                                           vectors[j]);
      store_vector(out + parts.head + v * kN, vectors[j]);
    }
  }
  const auto single = [&](std::int64_t k) {
    const Real x = to_real<Real>(row[k * stride]);
    out[k * out_stride] =
        to_storage<Storage>(finish(k, softmax_part<kWhole>(call, flow, label, k, x)));
  };
  for (std::int64_t k = lane; k < parts.head; k += kLanes) single(k);
  for (std::int64_t k = parts.tail + lane; k < call.columns; k += kLanes) single(k);
  __syncwarp(mine);
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    if (tap_columns[i] >= 0) out[tap_columns[i] * out_stride] = to_storage<Storage>(tap_values[i]);
  }
}

}  // namespace transducer::cuda
