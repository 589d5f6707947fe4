// SPDX-License-Identifier: Apache-2.0
//
// Gradient of the joint source over the packed kept rows, in chunks of whole frames:
//
//   h, z = W h + c again      in the forward's order of k
//   G = scale * d cost / d z  rounded to the product's elements, a range of columns at a time
//   dX = G W                  then times mask and act', summed over u into dE and over t into dP
//   dW += G^T h, dc += sum G
//
// Purpose: all gradients from scratch that does not grow with the batch. Approach: one cooperative launch; its
// blocks walk through the chunks together, a barrier over the grid between phases, so that chunks that do not
// exist cost nothing. Every sum has a fixed order: dE over u and dP over t in one thread each (a dP that spans
// chunks is carried over), dW in splits of a chunk's rows that are added in order. Cost: 6 rows K H operations.
#pragma once

#include "cuda/kernels/joint_input_sums.cuh"
#include "cuda/kernels/joint_logit_gradient.cuh"
#include "cuda/kernels/joint_rows.cuh"

namespace transducer::cuda {

template <class Element, int kPlanes, bool kHopper, int kGroups>
struct JointGradient {
  using Shape = Tile<Element, kHopper>;
  using Real = RealOf<Element>;
  using Params = JointGradientParams<Element>;
  using Logits = LogitGradient<Element, kPlanes, kHopper, kGroups>;
  using HiddenEngine = ProductEngine<Element, kPlanes, kHopper, true, false, false, false>;
  using WeightEngine = ProductEngine<Element, kPlanes, kHopper, false, false, false, true>;
  static constexpr int kListBytes = kListRows * static_cast<int>(sizeof(NodeAt));
  static constexpr int kFlowBytes = Shape::kRows * static_cast<int>(sizeof(typename Logits::Flow));
  static constexpr int kTableBytes = kListBytes > kFlowBytes ? kListBytes : kFlowBytes;
  static constexpr int kSharedBytes = WeightEngine::kSharedBytes + kTableBytes;

  const Params& p;
  unsigned char* stages;
  unsigned char* table;  // [kTableBytes] nodes or flows of rows
  Chunk chunk;
  unsigned rounds = 0;

  __device__ JointGradient(const Params& params, unsigned char* shared)
      : p(params), stages(shared), table(shared + WeightEngine::kSharedBytes) {}

  /// dX = G W.
  __device__ void make_hidden_gradient(std::int64_t begin, int total) {
    const int columns = range_columns(p, begin);
    const int across = (p.padded_hidden + Shape::kColumns - 1) / Shape::kColumns;
    const auto place = [&](int item, int* row, int* unit) {
      const int index = static_cast<int>(blockIdx.x) + item * static_cast<int>(gridDim.x);
      *row = index / across * Shape::kRows;
      *unit = index % across * Shape::kColumns;
    };
    HiddenEngine engine(stages, nullptr);
    engine.run(
        share_of(total, static_cast<int>(blockIdx.x)),
        [&](int item) {
          int row, unit;
          place(item, &row, &unit);
          Product<Element> product;
          product.a = {p.gradient + static_cast<std::int64_t>(row) * p.range, p.range,
                       p.capacity * p.range, 0};
          product.b = {p.weight + begin * p.padded_hidden + unit, p.padded_hidden, p.weight_plane,
                       p.padded_hidden - unit};
          product.steps = (columns + kStep - 1) / kStep;
          product.columns = min(Shape::kColumns, p.padded_hidden - unit);
          return product;
        },
        [] {}, [](int, Shape& tile) { tile.clear(); },
        [&](int item, Shape& tile, auto&) {
          int row, unit;
          place(item, &row, &unit);
#pragma unroll
          for (int i = 0; i < Shape::kOwnRows; ++i) {
            Real* to = p.hidden_gradient +
                       static_cast<std::int64_t>(row + Shape::row(i)) * p.padded_hidden + unit;
            add_pairs(tile, i, to, p.padded_hidden - unit, begin > 0);
          }
        });
  }

  /// Writes row i of a tile, or adds it to what is there.
  __device__ __forceinline__ void add_pairs(Shape& tile, int i, Real* to, int limit, bool add) {
    struct alignas(2 * sizeof(Real)) Pair {
      Real low, high;
    };
#pragma unroll
    for (int j = 0; j < Shape::kOwnColumns; j += 2) {
      const int column = Shape::column(j);
      if (column >= limit) continue;
      Pair* at = reinterpret_cast<Pair*>(to + column);
      Pair pair{tile.at(i, j), tile.at(i, j + 1)};
      if (add) {
        const Pair before = *at;
        pair.low += before.low;
        pair.high += before.high;
      }
      *at = pair;
    }
  }

  /// dW += G^T h, dc += sum G.
  __device__ void add_weight_gradient(std::int64_t begin, bool first_chunk, int passed) {
    const int columns = range_columns(p, begin);
    const int across = (p.padded_hidden + Shape::kColumns - 1) / Shape::kColumns;
    const int down = (columns + Shape::kRows - 1) / Shape::kRows;
    const int steps = (chunk.count + kStep - 1) / kStep;
    const std::int64_t padded_columns = p.weight_plane / p.padded_hidden;
    // Blocks that had one item less of dX begin.
    const int grid = static_cast<int>(gridDim.x);
    const int start = (static_cast<int>(blockIdx.x) + grid - passed % grid) % grid;
    const int total = down * across * p.splits;
    const auto place = [&](int item, int* column, int* unit, int* split) {
      const int index = start + item * grid;
      *split = index % p.splits;
      *unit = index / p.splits % across * Shape::kColumns;
      *column = index / p.splits / across * Shape::kRows;
    };
    WeightEngine engine(stages, nullptr);
    engine.run(
        share_of(total, start),
        [&](int item) {
          int column, unit, split;
          place(item, &column, &unit, &split);
          const int from = steps * split / p.splits;
          const std::int64_t row = static_cast<std::int64_t>(from) * kStep;
          Product<Element> product;
          product.a = {p.gradient + row * p.range + column, p.range, p.capacity * p.range,
                       (columns - column + 7) / 8 * 8};
          product.b = {p.hidden + row * p.padded_hidden + unit, p.padded_hidden,
                       p.capacity * p.padded_hidden, p.padded_hidden - unit};
          product.steps = steps * (split + 1) / p.splits - from;
          product.columns = min(Shape::kColumns, p.padded_hidden - unit);
          product.sums = unit == 0;
          return product;
        },
        [] {}, [](int, Shape& tile) { tile.clear(); },
        [&](int item, Shape& tile, auto& sums) {
          int column, unit, split;
          place(item, &column, &unit, &split);
#pragma unroll
          for (int i = 0; i < Shape::kOwnRows; ++i) {
            const std::int64_t k = begin + column + Shape::row(i);
            if (k >= p.call.columns) continue;
            const std::int64_t at = split * padded_columns + k;
            add_pairs(tile, i, p.weight_sums + at * p.padded_hidden + unit, p.padded_hidden - unit,
                      !first_chunk);
            if (unit == 0 && Shape::warp_column() == 0 && Shape::quad() == 0) {
              const Real before = first_chunk ? Real(0) : p.bias_sums[at];
              p.bias_sums[at] = before + sums[i / 2 * 4 + i % 2 * 2];
            }
          }
        });
  }

  __device__ void run() {
    const std::int64_t total = p.rows.count();
    const std::int64_t chunks =
        total <= p.chunk_rows ? 1 : (total + p.chunk_rows - 1) / p.chunk_rows;
    for (std::int64_t index = 0; index < chunks; ++index) {
      // The sums of the chunk before run beside the rows of this one.
      if (index > 0 && p.wants_inputs) InputSums<Element>{p, chunk}.run();
      chunk = chunk_at(p, index, chunks);
      ChunkRows<Element, kPlanes, kHopper, kGroups>{p, chunk, reinterpret_cast<NodeAt*>(table)}
          .run();
      meet(p.arrived, ++rounds);
      for (std::int64_t begin = 0; begin < p.call.columns; begin += p.range) {
        Logits{p, chunk, stages, reinterpret_cast<typename Logits::Flow*>(table)}.run(begin);
        meet(p.arrived, ++rounds);
        const int across = (p.padded_hidden + Shape::kColumns - 1) / Shape::kColumns;
        const int down = (chunk.count + Shape::kRows - 1) / Shape::kRows;
        const int items = p.wants_inputs ? down * across : 0;
        make_hidden_gradient(begin, items);
        if (p.wants_weight) add_weight_gradient(begin, index == 0, items);
        meet(p.arrived, ++rounds);
      }
    }
    if (p.wants_inputs) InputSums<Element>{p, chunk}.run();
  }
};

template <class Element, int kPlanes, bool kHopper, int kGroups>
__global__ void __launch_bounds__(kThreads, 1)
    joint_gradient_kernel(const __grid_constant__ JointGradientParams<Element> p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  JointGradient<Element, kPlanes, kHopper, kGroups> block(p, shared);
  block.run();
}

}  // namespace transducer::cuda
