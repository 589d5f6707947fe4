// SPDX-License-Identifier: Apache-2.0
//
// Scores of the joint source: z(t, u) = W h + c for packed reachable rows, reduced to the logits at the taps
// and the log-sum of each group; logits stay in registers.
//
// Purpose: node_scores [S, plane]. Approach: a block takes tiles of 128 rows, makes h once (in shared memory
// where it fits, else in a slot of scratch of its own), and streams W past it, 256 columns at a time; each
// warp keeps (max, sum) of its columns and catches the taps as they pass. Constraint: tensor cores, 2 rows K H
// operations. Tiles are assigned to blocks statically; the row count is read on the device.
#pragma once

#include "cuda/call_view.hpp"
#include "cuda/device/packed_rows.cuh"

namespace transducer::cuda {

template <class Element>
struct JointScoresParams {
  CallView call;
  JointView joint;
  RowSet rows;
  const Element* weight;  // [planes, K padded, H padded]
  std::int64_t weight_plane;
  const RealOf<Element>* bias;   // [K padded]
  Element* slots;                // [blocks, planes, tile rows, H padded]
  int padded_hidden;             // H padded to kStep
  RealOf<Element>* node_scores;  // [S, plane]
};

/// (max, sum of e^(x - max)) over one group's columns.
template <class Real>
struct MaxSum {
  Real max = -INFINITY;
  Real sum = 0;

  template <bool kApproximate>
  __device__ __forceinline__ void merge(Real other_max, Real other_sum) {
    const Real high = fmax(max, other_max);
    const Real base = high == -INFINITY ? Real(0) : high;
    const Exponential<Real, kApproximate> relative(base);
    sum = sum * relative(max) + other_sum * relative(other_max);
    max = high;
  }
};

template <class Element, int kPlanes, bool kHopper, int kGroups, bool kResident>
struct JointScores {
  using Shape = Tile<Element, kHopper>;
  using Real = typename Shape::Real;
  using Engine = ProductEngine<Element, kPlanes, kHopper, true, true, kResident, false>;
  using Params = JointScoresParams<Element>;
  static constexpr bool kApproximate = Shape::kTensorCores && kPlanes == 1;
  static constexpr int kSlots = (Shape::kOwnRows + 3) / 4;  // rows whose sums a lane keeps
  static constexpr int kMergeBytes =
      kGroups * Shape::kWarpColumns * Shape::kRows * 2 * static_cast<int>(sizeof(Real));
  static constexpr int kStageBytes =
      Engine::kSharedBytes > kMergeBytes ? Engine::kSharedBytes : kMergeBytes;

  static int shared_bytes(int padded_hidden) {
    const int table = Shape::kRows * static_cast<int>(sizeof(NodeAt) + sizeof(int));
    return (kResident ? Shape::kRows * padded_hidden * 2 : 0) + kStageBytes + table;
  }

  const Params& p;
  unsigned char* resident;
  unsigned char* stages;
  NodeAt* nodes;
  int* labels;
  MaxSum<Real> sums[kGroups][kSlots];

  __device__ JointScores(const Params& params, unsigned char* shared) : p(params) {
    resident = shared;
    stages = shared + (kResident ? Shape::kRows * p.padded_hidden * 2 : 0);
    nodes = reinterpret_cast<NodeAt*>(stages + kStageBytes);
    labels = reinterpret_cast<int*>(nodes + Shape::kRows);
  }

  __device__ Real* out(int row) const {
    return p.node_scores + p.call.node(nodes[row].b, nodes[row].t, nodes[row].u);
  }

  __device__ __forceinline__ Element* slot() const {
    return p.slots +
           static_cast<std::int64_t>(blockIdx.x) * kPlanes * Shape::kRows * p.padded_hidden;
  }

  __device__ __forceinline__ void make_hidden() {
    const std::int64_t plane = static_cast<std::int64_t>(Shape::kRows) * p.padded_hidden;
    make_hidden_rows<Element, kPlanes, Real>(
        p.joint, nodes, Shape::kRows, p.padded_hidden, [&](int row, int first, Real(&x)[8]) {
          if constexpr (kResident) {
            unsigned char* at = resident + first / kStep * Shape::kBytesA + row * 64 +
                                ((first % kStep / 8) ^ (row / 2 % 4)) * 16;
            store_planes<1>(x, reinterpret_cast<Element*>(at), 0);
          } else {
            store_planes<kPlanes>(x, slot() + row * p.padded_hidden + first, plane);
          }
        });
    __syncthreads();
  }

  /// Where the logits begin: the bias; columns from K on become -inf.
  __device__ __forceinline__ void begin_logits(Shape& tile, std::int64_t first) {
    const int columns =
        static_cast<int>(min(p.call.columns - first, std::int64_t{Shape::kColumns}));
    const Real* bias = p.bias + first;
#pragma unroll
    for (int j = 0; j < Shape::kOwnColumns; ++j) {
      const int column = Shape::logit_column(j);
      const Real start = column < columns ? bias[column] : Real(-INFINITY);
#pragma unroll
      for (int i = 0; i < Shape::kOwnRows; ++i) tile.at(i, j) = start;
    }
  }

  /// Takes one group's columns of one row into its sums; `inside(j)` says which.
  template <class Inside>
  __device__ __forceinline__ void reduce_row(Shape& tile, int i, MaxSum<Real> (&state)[kSlots],
                                             Inside inside) {
    constexpr int kChains = 4;
    Real high[kChains] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
    for (int j = 0; j < Shape::kOwnColumns; ++j) {
      // fmax ignores NaN, which the sum keeps
      if (inside(j)) high[j % kChains] = fmax(high[j % kChains], tile.at(i, j));
    }
    Real highest = fmax(fmax(high[0], high[1]), fmax(high[2], high[3]));
    highest = fmax(highest, __shfl_xor_sync(~0u, highest, 1));
    highest = fmax(highest, __shfl_xor_sync(~0u, highest, 2));
    const Exponential<Real, kApproximate> relative(highest == -INFINITY ? Real(0) : highest);
    Real sum[kChains] = {};
#pragma unroll
    for (int j = 0; j < Shape::kOwnColumns; ++j) {
      if (inside(j)) sum[j % kChains] += relative(tile.at(i, j));
    }
    Real total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if (Shape::quad() == i % 4) state[i / 4].template merge<kApproximate>(highest, total);
  }

  __device__ __forceinline__ void reduce(Shape& tile, std::int64_t first) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if ((p.call.plan.read_groups >> g & 1) == 0) continue;
      const Group& group = p.call.plan.groups[g];
      // Columns from K on are -inf, so that the last tile of a whole group counts as covered.
      const TileColumns any_label(group, -1, first, p.call.columns);
      if (any_label.none()) continue;
      const int width =
          static_cast<int>(min(p.call.columns - first, std::int64_t{Shape::kColumns}));
      const bool covered = !group.exclude_label && any_label.all(width);
#pragma unroll
      for (int i = 0; i < Shape::kOwnRows; ++i) {
        if (covered) {
          reduce_row(tile, i, sums[g], [](int) { return true; });
        } else {
          const TileColumns columns(group, labels[Shape::row(i)], first, p.call.columns);
          reduce_row(tile, i, sums[g],
                     [&](int j) { return columns.contains(Shape::logit_column(j)); });
        }
      }
    }
  }

  __device__ __forceinline__ void catch_taps(Shape& tile, std::int64_t first) {
    const TapPlan& plan = p.call.plan;
    for (int tap = 0; tap < plan.num_taps; ++tap) {
      const bool fixed = tap < plan.num_fixed;
      if (fixed && (plan.fixed[tap] < first || plan.fixed[tap] >= first + Shape::kColumns))
        continue;
#pragma unroll
      for (int i = 0; i < Shape::kOwnRows; ++i) {
        const int row = Shape::row(i);
        const int label = labels[row];
        if ((!fixed && label < 0) || nodes[row].b < 0) continue;
        const std::int64_t column = plan.tap_column(tap, label) - first;
        if (column < 0 || column >= Shape::kColumns) continue;
        const int wanted = static_cast<int>(column);
        bool mine = false;
        Real z = 0;
#pragma unroll
        for (int j = 0; j < Shape::kOwnColumns; ++j) {
          const bool here = Shape::logit_column(j) == wanted;
          mine = mine || here;
          z = here ? tile.at(i, j) : z;
        }
        if (mine) out(row)[p.call.tap_plane(tap) * p.call.plane] = z;
      }
    }
  }

  /// The block's sums of every group, and the taps that have no column.
  __device__ __forceinline__ void write_sums() {
    Real* merged = reinterpret_cast<Real*>(stages);  // [groups, warp columns, rows, 2]
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < Shape::kOwnRows; ++i) {
        if (Shape::quad() != i % 4) continue;
        Real* at =
            merged +
            ((g * Shape::kWarpColumns + Shape::warp_column()) * Shape::kRows + Shape::row(i)) * 2;
        at[0] = sums[g][i / 4].max;
        at[1] = sums[g][i / 4].sum;
      }
    }
    __syncthreads();
    const int row = static_cast<int>(threadIdx.x);
    if (row >= Shape::kRows || nodes[row].b < 0) return;
    const TapPlan& plan = p.call.plan;
    for (int g = 0; g < plan.num_groups; ++g) {
      Real log_sum = 0;
      if ((plan.read_groups >> g & 1) != 0) {
        MaxSum<Real> total;
        for (int w = 0; w < Shape::kWarpColumns; ++w) {
          const Real* at = merged + ((g * Shape::kWarpColumns + w) * Shape::kRows + row) * 2;
          total.template merge<kApproximate>(at[0], at[1]);
        }
        log_sum = total.max + log(total.sum);
        if (plan.groups[g].normaliser == Normaliser::bernoulli) {  // softplus
          log_sum = fmax(log_sum, Real(0)) + log1p(exp(-fabs(log_sum)));
        }
      }
      out(row)[p.call.group_plane(g) * p.call.plane] = log_sum;
    }
    for (int tap = 0; tap < plan.num_taps; ++tap) {
      const bool reads = tap < plan.num_fixed || labels[row] >= 0;
      const std::int64_t k = plan.tap_column(tap, labels[row]);
      if (!reads || k < 0 || k >= p.call.columns) {
        out(row)[p.call.tap_plane(tap) * p.call.plane] = Real(-INFINITY);
      }
    }
  }

  __device__ __forceinline__ void run() {
    const std::int64_t count = p.rows.count();
    const int column_tiles =
        static_cast<int>((p.call.columns + Shape::kColumns - 1) / Shape::kColumns);
    for (std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * Shape::kRows; begin < count;
         begin += static_cast<std::int64_t>(gridDim.x) * Shape::kRows) {
      const int row = static_cast<int>(threadIdx.x);
      __syncthreads();
      if (row < Shape::kRows) {
        NodeAt at = node_of_row(p.rows, min(begin + row, count - 1));
        if (begin + row >= count) at = NodeAt{-1, 0, 0};
        nodes[row] = at;
        labels[row] = at.b < 0 ? -1 : static_cast<int>(p.call.label_of(at.b, at.u));
      }
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int s = 0; s < kSlots; ++s) sums[g][s] = MaxSum<Real>{};
      }
      __syncthreads();
      if constexpr (!kResident) make_hidden();
      Engine engine(stages, resident);
      engine.run(
          column_tiles,
          [&](int item) {
            const std::int64_t first = static_cast<std::int64_t>(item) * Shape::kColumns;
            Product<Element> product;
            if constexpr (!kResident) {
              product.a = {slot(), p.padded_hidden,
                           static_cast<std::int64_t>(Shape::kRows) * p.padded_hidden, 0};
            }
            product.b = {p.weight + first * p.padded_hidden, p.padded_hidden, p.weight_plane, 0};
            product.steps = p.padded_hidden / kStep;
            product.columns = static_cast<int>(
                min(static_cast<std::int64_t>(Shape::kColumns), p.call.columns - first));
            return product;
          },
          [&] {
            if constexpr (kResident) make_hidden();
          },
          [&](int item, Shape& tile) {
            begin_logits(tile, static_cast<std::int64_t>(item) * Shape::kColumns);
          },
          [&](int item, Shape& tile, auto&) {
            const std::int64_t first = static_cast<std::int64_t>(item) * Shape::kColumns;
            reduce(tile, first);
            catch_taps(tile, first);
          });
      write_sums();
    }
  }
};

template <class Element, int kPlanes, bool kHopper, int kGroups, bool kResident>
__global__ void __launch_bounds__(kThreads, 1)
    joint_scores_kernel(const __grid_constant__ JointScoresParams<Element> p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  JointScores<Element, kPlanes, kHopper, kGroups, kResident> block(p, shared);
  block.run();
}

}  // namespace transducer::cuda
