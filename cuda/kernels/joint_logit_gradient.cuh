// SPDX-License-Identifier: Apache-2.0
//
// Second phase of a chunk of the joint source's backward: z again, and
//
//   G = scale * (sum over groups coefficient softmax + corrections at the taps)
//
// clamped before it is scaled, rounded to the product's elements, for one range of columns. Cost: 2 rows K H
// operations; writes planes x 2 K bytes a row.
#pragma once

#include "cuda/kernels/joint_gradient_params.cuh"

namespace transducer::cuda {

template <class Element, int kPlanes, bool kHopper, int kGroups>
struct LogitGradient {
  using Shape = Tile<Element, kHopper>;
  using Real = RealOf<Element>;
  using Engine = ProductEngine<Element, kPlanes, kHopper, true, true, false, false>;
  using Flow = RowFlow<Real, kGroups>;
  static constexpr bool kApproximate = Shape::kTensorCores && kPlanes == 1;

  const JointGradientParams<Element>& p;
  const Chunk& chunk;
  unsigned char* stages;
  Flow* flows;  // [tile rows], shared memory

  /// Brings the flows of a tile's rows into shared memory; the product's barriers make them visible.
  __device__ __forceinline__ void load_flows(int first) {
    __syncthreads();  // the tile before may still read its own
    const int row = static_cast<int>(threadIdx.x);
    if (row >= Shape::kRows) return;
    const bool valid = first + row < chunk.count;
    const std::int64_t at = valid ? first + row : 0;
    Flow flow{};
    flow.label = -1;
    if (valid) {
      flow.scale = p.row_scale[at];
      flow.label = p.label[at];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        if (g >= p.call.plan.num_groups) break;
        flow.coefficient[g] = p.coefficient[g * p.capacity + at];
        flow.log_sum[g] = p.log_sum[g * p.capacity + at];
      }
#pragma unroll
      for (int tap = 0; tap < 2; ++tap) {
        if (tap < p.call.plan.num_taps) flow.amount[tap] = p.amount[tap * p.capacity + at];
      }
    }
    flows[row] = flow;
  }

  /// One group's share of a row, coefficient times softmax, into value(j).
  template <class Value>
  __device__ __forceinline__ void group_share(Shape& tile, int i, const TileColumns& columns,
                                              bool bernoulli, Real coefficient, Real log_sum,
                                              std::int64_t first, Value value) {
    if (bernoulli) {
      Real z = 0;
#pragma unroll
      for (int j = 0; j < Shape::kOwnColumns; ++j) {
        z = Shape::logit_column(j) == columns.begin ? tile.at(i, j) : z;
      }
      const Real share = coefficient * logistic(z);
#pragma unroll
      for (int j = 0; j < Shape::kOwnColumns; ++j) {
        value(j, Shape::logit_column(j) == columns.begin ? share : Real(0));
      }
      return;
    }
    const Exponential<Real, kApproximate> relative(log_sum);
    const int width = static_cast<int>(min(p.call.columns - first, std::int64_t{Shape::kColumns}));
    if (columns.all(width)) {
#pragma unroll
      for (int j = 0; j < Shape::kOwnColumns; ++j) {
        value(j, coefficient * relative(tile.at(i, j)));
      }
    } else {
#pragma unroll
      for (int j = 0; j < Shape::kOwnColumns; ++j) {
        const Real share = coefficient * relative(tile.at(i, j));
        value(j, columns.contains(Shape::logit_column(j)) ? share : Real(0));
      }
    }
  }

  /// Clamps row i but for the columns of groups with clamp = false.
  __device__ __forceinline__ void clamp_row(Shape& tile, int i, std::int64_t first) {
    const TapPlan& plan = p.call.plan;
    const Real limit = static_cast<Real>(p.call.clamp);
    int begin[kGroups] = {};
    int end[kGroups] = {};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g >= plan.num_groups || (plan.unclamped_groups >> g & 1) == 0) continue;
      Group whole = plan.groups[g];
      whole.exclude_fixed = whole.exclude_label = false;
      const TileColumns columns(whole, -1, first, p.call.columns);
      begin[g] = columns.begin;
      end[g] = columns.end;
    }
#pragma unroll
    for (int j = 0; j < Shape::kOwnColumns; ++j) {
      const int column = Shape::logit_column(j);
      bool free = false;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) free = free || (column >= begin[g] && column < end[g]);
      const Real value = tile.at(i, j);
      const Real clamped = value > limit ? limit : value < -limit ? -limit : value;
      tile.at(i, j) = free ? value : clamped;
    }
  }

  /// Turns row i of a tile of logits into its gradient.
  __device__ __forceinline__ void gradient_row(Shape& tile, int i, int row, std::int64_t first) {
    const TapPlan& plan = p.call.plan;
    const Flow& flow = flows[Shape::row(i)];
    const bool valid = row < chunk.count;
    const int label = flow.label;
    Real sum[kGroups == 1 ? 1 : Shape::kOwnColumns];  // one group needs no sum
    if constexpr (kGroups > 1) {
#pragma unroll
      for (int j = 0; j < Shape::kOwnColumns; ++j) sum[j] = Real(0);
    }
    bool any = false;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g >= plan.num_groups) break;
      const TileColumns columns(plan.groups[g], label, first, p.call.columns);
      if (columns.none() || flow.coefficient[g] == Real(0)) continue;
      any = true;
      group_share(tile, i, columns, plan.groups[g].normaliser == Normaliser::bernoulli,
                  flow.coefficient[g], flow.log_sum[g], first, [&](int j, Real share) {
                    if constexpr (kGroups == 1) {
                      tile.at(i, j) = share;
                    } else {
                      sum[j] += share;
                    }
                  });
    }
#pragma unroll
    for (int j = 0; j < Shape::kOwnColumns; ++j) {
      if constexpr (kGroups == 1) {
        tile.at(i, j) = any ? tile.at(i, j) : Real(0);
      } else {
        tile.at(i, j) = sum[j];
      }
    }
    for (int tap = 0; tap < plan.num_taps; ++tap) {
      if (!valid || (tap >= plan.num_fixed && label < 0)) continue;
      const std::int64_t column = plan.tap_column(tap, label) - first;
      if (column < 0 || column >= Shape::kColumns) continue;
      const Real amount = tap == 0   ? flow.amount[0]
                          : tap == 1 ? flow.amount[1]
                                     : p.amount[tap * p.capacity + row];
      const int wanted = static_cast<int>(column);
#pragma unroll
      for (int j = 0; j < Shape::kOwnColumns; ++j) {
        tile.at(i, j) += Shape::logit_column(j) == wanted ? amount : Real(0);
      }
    }
    const Real scale = flow.scale;
    if (p.call.clamp > 0.0) clamp_row(tile, i, first);
    const int width =
        valid ? static_cast<int>(min(p.call.columns - first, std::int64_t{Shape::kColumns})) : 0;
    const bool ordinary = scale == scale;  // 0 stays 0 whatever it is scaled by, but for NaN
#pragma unroll
    for (int j = 0; j < Shape::kOwnColumns; ++j) {
      const bool zero = (tile.at(i, j) == Real(0) && ordinary) || Shape::logit_column(j) >= width;
      tile.at(i, j) = zero ? Real(0) : tile.at(i, j) * scale;
    }
  }

  __device__ void run(std::int64_t begin) {
    const int columns = range_columns(p, begin);
    const int across = (columns + Shape::kColumns - 1) / Shape::kColumns;
    const int down = (chunk.count + Shape::kRows - 1) / Shape::kRows;
    const auto place = [&](int item, int* row, int* column) {
      const int index = static_cast<int>(blockIdx.x) + item * static_cast<int>(gridDim.x);
      *row = index / across * Shape::kRows;
      *column = index % across * Shape::kColumns;
    };
    Engine engine(stages, nullptr);
    engine.run(
        share_of(down * across, static_cast<int>(blockIdx.x)),
        [&](int item) {
          int row, column;
          place(item, &row, &column);
          Product<Element> product;
          product.a = {p.hidden + static_cast<std::int64_t>(row) * p.padded_hidden, p.padded_hidden,
                       p.capacity * p.padded_hidden, 0};
          product.b = {p.weight + (begin + column) * p.padded_hidden, p.padded_hidden,
                       p.weight_plane, 0};
          product.steps = p.padded_hidden / kStep;
          product.columns = min(Shape::kColumns, (columns - column + kStep - 1) / kStep * kStep);
          return product;
        },
        [] {},
        [&](int item, Shape& tile) {
          int row, column;
          place(item, &row, &column);
          load_flows(row);
          const Real* bias = p.bias + begin + column;
#pragma unroll
          for (int j = 0; j < Shape::kOwnColumns; ++j) {
            const Real start = bias[Shape::logit_column(j)];
#pragma unroll
            for (int i = 0; i < Shape::kOwnRows; ++i) tile.at(i, j) = start;
          }
        },
        [&](int item, Shape& tile, auto&) {
          int row, column;
          place(item, &row, &column);
          const int written = min(Shape::kColumns, (columns - column + kStep - 1) / kStep * kStep);
          const std::int64_t plane = p.capacity * p.range;
          constexpr int kRun = Shape::kLogitRun;
#pragma unroll
          for (int i = 0; i < Shape::kOwnRows; ++i) {
            const int at = row + Shape::row(i);
            asm volatile("" ::
                             : "memory");  // one row after the other: both do not fit the registers
            gradient_row(tile, i, at, begin + column);
            Element* to = p.gradient + static_cast<std::int64_t>(at) * p.range + column;
#pragma unroll
            for (int j = 0; j < Shape::kOwnColumns; j += kRun) {
              Real run[kRun];
#pragma unroll
              for (int n = 0; n < kRun; ++n) run[n] = tile.at(i, j + n);
              if (Shape::logit_column(j) < written) {
                store_planes<kPlanes>(run, to + Shape::logit_column(j), plane);
              }
            }
          }
        });
  }
};

}  // namespace transducer::cuda
