// SPDX-License-Identifier: Apache-2.0
//
// What flows into a row of logits, from the posteriors of its node: per group one coefficient of its softmax,
// and corrections at the taps,
//
//   d cost / d x_k = sum over groups  coefficient_g softmax_g(x)_k  +  sum over taps at column k  amount
//
// amount = - sum over the arcs that read the tap of s gamma; the coefficients take the same with the signs of
// the normalisers.
#pragma once

#include "cuda/call_view.hpp"
#include "cuda/lattice_view.hpp"

namespace transducer::cuda {

template <class Real>
struct RowFlow {
  Real coefficient[kMaxGroups] = {};
  Real log_sum[kMaxGroups] = {};
};

template <class Real>
__device__ __forceinline__ void collect_flow(const CallView& call, const LatticeView<Real>& lattice,
                                             std::int64_t node, RowFlow<Real>& flow) {
  for (int a = 0; a < call.plan.num_arcs; ++a) {
    const Real gamma = lattice.arcs[a * call.plane + node];
    if (gamma == Real(0)) continue;  // an arc on no path may read anything
    const PlannedArc& arc = call.plan.arcs[a];
    for (int i = 0; i < arc.num_columns; ++i) {
      const PlannedColumn& column = arc.columns[i];
      const Real amount = -gamma * static_cast<Real>(column.grad_scale);
#pragma unroll
      for (int g = 0; g < kMaxGroups; ++g) {
        if (column.log_sum == g) flow.coefficient[g] += amount;
        if ((column.subtract >> g & 1) != 0) flow.coefficient[g] -= amount;
        if ((column.add >> g & 1) != 0) flow.coefficient[g] += amount;
      }
    }
  }
#pragma unroll
  for (int g = 0; g < kMaxGroups; ++g) {
    if (g < call.plan.num_groups) {
      flow.log_sum[g] = lattice.node_scores[call.group_plane(g) * call.plane + node];
    }
  }
}

/// The whole correction of the column that `tap` reads, if no earlier tap reads the same one; `column` is that
/// column, or -1 where there is nothing to correct.
template <class Real>
__device__ __forceinline__ Real tap_correction(const CallView& call,
                                               const LatticeView<Real>& lattice, std::int64_t node,
                                               std::int64_t label, int tap, std::int64_t* column) {
  const auto column_of = [&](int i) {
    return i < call.plan.num_fixed || label >= 0 ? call.plan.tap_column(i, label) : -1;
  };
  *column = -1;
  const std::int64_t k = column_of(tap);
  if (k < 0 || k >= call.columns) return 0;
  for (int i = 0; i < tap; ++i) {
    if (column_of(i) == k) return 0;
  }
  Real sum = 0;
  for (int a = 0; a < call.plan.num_arcs; ++a) {
    const Real gamma = lattice.arcs[a * call.plane + node];
    if (gamma == Real(0)) continue;
    const PlannedArc& arc = call.plan.arcs[a];
    for (int i = 0; i < arc.num_columns; ++i) {
      const PlannedColumn& read = arc.columns[i];
      if (read.tap >= 0 && column_of(read.tap) == k) {
        sum -= gamma * static_cast<Real>(read.grad_scale);
      }
    }
  }
  if (sum != Real(0)) *column = k;
  return sum;
}

}  // namespace transducer::cuda
