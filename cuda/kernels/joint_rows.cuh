// SPDX-License-Identifier: Apache-2.0
//
// First phase of a chunk of the joint source's backward: its rows, what flows into each from the posteriors of
// its node (row_gradient of the CPU layer), and h. Bytes: planes x 2 H a row.
#pragma once

#include "cuda/kernels/joint_gradient_params.cuh"

namespace transducer::cuda {

template <class Element, int kPlanes, bool kHopper, int kGroups>
struct ChunkRows {
  using Shape = Tile<Element, kHopper>;
  using Real = RealOf<Element>;

  const JointGradientParams<Element>& p;
  const Chunk& chunk;
  NodeAt* nodes;  // [kListRows], shared memory

  __device__ void list_row(int row, const NodeAt& at) {
    const TapPlan& plan = p.call.plan;
    const std::int64_t node = p.call.node(at.b, at.t, at.u);
    // What most variants need is loaded before anything waits for it.
    constexpr int kFirst = 2;
    Real first_gamma[kFirst];
#pragma unroll
    for (int a = 0; a < kFirst; ++a) {
      first_gamma[a] = a < plan.num_arcs ? p.posteriors[a * p.call.plane + node] : Real(0);
    }
    Real log_sum[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      log_sum[g] = g < plan.num_groups ? p.node_scores[p.call.group_plane(g) * p.call.plane + node]
                                       : Real(0);
    }
    const double scale = p.scale[at.b] * static_cast<double>(*p.power);
    p.row_u[chunk.parity * p.capacity + row] = at.u;
    p.label[row] = static_cast<int>(p.call.label_of(at.b, at.u));
    for (int i = 2; i < plan.num_taps; ++i) p.amount[i * p.capacity + row] = Real(0);
    Real amount[2] = {};
    Real coefficient[kGroups] = {};
    bool poisoned = false;
    // One copy of the loop's body: the code of a phase is fetched anew for every chunk.
#pragma unroll 1
    for (int a = 0; a < plan.num_arcs; ++a) {
      const Real gamma = a == 0   ? first_gamma[0]
                         : a == 1 ? first_gamma[1]
                                  : p.posteriors[a * p.call.plane + node];
      if (gamma == Real(0)) continue;  // an arc on no path may read anything
      poisoned = poisoned || gamma != gamma;
      const PlannedArc& arc = plan.arcs[a];
#pragma unroll 1
      for (int i = 0; i < arc.num_columns; ++i) {
        const PlannedColumn& column = arc.columns[i];
        const Real flow = -gamma * static_cast<Real>(column.grad_scale);
        if (column.tap == 0) amount[0] += flow;
        if (column.tap == 1) amount[1] += flow;
        if (column.tap > 1) p.amount[column.tap * p.capacity + row] += flow;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          if (column.log_sum == g) coefficient[g] += flow;
          if ((column.subtract >> g & 1) != 0) coefficient[g] -= flow;
          if ((column.add >> g & 1) != 0) coefficient[g] += flow;
        }
      }
    }
    // NaN reaches every column, those of no group too.
    p.row_scale[row] = poisoned ? static_cast<Real>(NAN) : static_cast<Real>(scale);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i < plan.num_taps) p.amount[i * p.capacity + row] = amount[i];
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g >= plan.num_groups) break;
      p.coefficient[g * p.capacity + row] = coefficient[g];
      p.log_sum[g * p.capacity + row] = log_sum[g];
    }
  }

  __device__ void run() {
    const std::int64_t plane = p.capacity * p.padded_hidden;
    const int padded = (chunk.count + Shape::kRows - 1) / Shape::kRows * Shape::kRows;
    const int stride = static_cast<int>(gridDim.x) * kListRows;
    for (int first = static_cast<int>(blockIdx.x) * kListRows; first < padded; first += stride) {
      const int row = first + static_cast<int>(threadIdx.x);
      __syncthreads();
      if (threadIdx.x < kListRows) {
        NodeAt at{-1, 0, 0};
        if (chunk.count > 0) at = node_of_row(p.rows, chunk.row_begin + min(row, chunk.count - 1));
        if (row < chunk.count) {
          list_row(row, at);
        } else {
          at = NodeAt{-1, 0, 0};
        }
        nodes[threadIdx.x] = at;
      }
      __syncthreads();
      const int here = min(kListRows, padded - first);
      make_hidden_rows<Element, kPlanes, Real>(
          p.joint, nodes, here, p.padded_hidden, [&](int i, int unit, Real(&x)[8]) {
            store_planes<kPlanes>(
                x, p.hidden + static_cast<std::int64_t>(first + i) * p.padded_hidden + unit, plane);
          });
    }
  }
};

}  // namespace transducer::cuda
