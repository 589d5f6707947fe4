// SPDX-License-Identifier: Apache-2.0
//
// From a packed row number back to its node, and tiles of h for packed rows.
//
//   h = drop(act(E_t + m_u P_u))   [rows, H padded to a multiple of kStep], in 16-bit elements or planes
#pragma once

#include "cuda/device/hidden.cuh"
#include "cuda/device/product.cuh"
#include "cuda/row_set.cuh"

namespace transducer::cuda {

/// The frame that holds row `row` < rows.count(), found by a warp together.
__device__ __forceinline__ std::int64_t frame_of_row(const RowSet& rows, std::int64_t row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::int64_t low = 0;  // offset[low] <= row < offset[high]
  std::int64_t high = rows.num_frames;
  while (high - low > 1) {
    const std::int64_t step = (high - low + 31) / 32;
    const std::int64_t probe = low + (lane + 1) * step;
    const bool before = probe < high && rows.offset[probe] <= row;
    low += __popc(__ballot_sync(~0u, before)) * step;
    high = min(high, low + step);
  }
  return low;
}

/// Node of row `row` < rows.count(). All lanes of a warp must call, with rows that ascend by lane; the frames
/// between the first's and the last's are searched by each lane for itself.
__device__ __forceinline__ NodeAt node_of_row(const RowSet& rows, std::int64_t row) {
  std::int64_t low = frame_of_row(rows, __shfl_sync(~0u, row, 0));
  std::int64_t high = frame_of_row(rows, __shfl_sync(~0u, row, 31)) + 1;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (rows.offset[middle] <= row ? low : high) = middle;
  }
  int rank = static_cast<int>(row - rows.offset[low]);
  const std::uint32_t* word = rows.bits + low * rows.words;
  int w = 0;
  for (; w + 1 < rows.words; ++w) {
    const int here = __popc(word[w]);
    if (rank < here) break;
    rank -= here;
  }
  std::uint32_t bits = word[w];
  for (; rank > 0; --rank) bits &= bits - 1;
  NodeAt at;
  at.b = static_cast<int>(low / rows.frames);
  at.t = static_cast<int>(low - static_cast<std::int64_t>(at.b) * rows.frames);
  at.u = w * 32 + __ffs(static_cast<int>(bits)) - 1;
  return at;
}

/// Sums of eight neighbouring units that lie as 16-bit elements.
template <class Element>
__device__ __forceinline__ void add_pieces(const uint4& e, const uint4& p, float (&x)[8]) {
  const std::uint32_t word_e[4] = {e.x, e.y, e.z, e.w};
  const std::uint32_t word_p[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    float e_low, e_high, p_low, p_high;
    widen_pair<Element>(word_e[n], &e_low, &e_high);
    widen_pair<Element>(word_p[n], &p_low, &p_high);
    x[2 * n] = e_low + p_low;
    x[2 * n + 1] = e_high + p_high;
  }
}

template <class Element>
inline constexpr DType kElementType =
    std::is_same_v<Element, __half> ? DType::float16 : DType::bfloat16;

/// The usual case of make_hidden_rows: a warp takes two rows at a time, and all their loads are under way before
/// the first is used.
template <class Element, class Write>
__device__ __forceinline__ void make_hidden_directly(const JointView& joint, const NodeAt* nodes,
                                                     int count, int padded, Write write) {
  constexpr int kRowsAhead = 2;
  constexpr int kPiecesAhead = 3;
  constexpr int kWarps = kThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const TensorRef& e = joint.encoder.tensor;
  const TensorRef& p = joint.predictor.tensor;
  for (int row = static_cast<int>(threadIdx.x) / 32; row < count; row += kRowsAhead * kWarps) {
    const std::uint16_t* from_e[kRowsAhead];
    const std::uint16_t* from_p[kRowsAhead];
    NodeAt at[kRowsAhead];
#pragma unroll
    for (int r = 0; r < kRowsAhead; ++r) {
      at[r] = nodes[min(row + r * kWarps, count - 1)];
      const NodeAt read = at[r].b < 0 ? NodeAt{} : at[r];
      from_e[r] =
          static_cast<const std::uint16_t*>(e.data) + read.b * e.strides[0] + read.t * e.strides[1];
      from_p[r] =
          static_cast<const std::uint16_t*>(p.data) + read.b * p.strides[0] + read.u * p.strides[1];
    }
    for (int first = lane * 8; first < padded; first += kPiecesAhead * 256) {
      uint4 raw_e[kRowsAhead][kPiecesAhead];
      uint4 raw_p[kRowsAhead][kPiecesAhead];
#pragma unroll
      for (int r = 0; r < kRowsAhead; ++r) {
#pragma unroll
        for (int j = 0; j < kPiecesAhead; ++j) {
          const int unit = min(first + j * 256, padded - 8);
          raw_e[r][j] = __ldg(reinterpret_cast<const uint4*>(from_e[r] + unit));
          raw_p[r][j] = __ldg(reinterpret_cast<const uint4*>(from_p[r] + unit));
        }
      }
#pragma unroll
      for (int r = 0; r < kRowsAhead; ++r) {
#pragma unroll
        for (int j = 0; j < kPiecesAhead; ++j) {
          const int unit = first + j * 256;
          if (unit >= padded || row + r * kWarps >= count) continue;
          float x[8];
          add_pieces<Element>(raw_e[r][j], raw_p[r][j], x);
          if (at[r].b < 0) {
#pragma unroll
            for (int n = 0; n < 8; ++n) x[n] = 0.0f;
          } else {
            make_units(joint, at[r], unit, x);
          }
          write(row + r * kWarps, unit, x);
        }
      }
    }
  }
}

/// Makes h for `count` rows of a block, nodes[i] in shared memory; b < 0 makes zeros. write(row, first, x)
/// stores 8 units.
template <class Element, int kPlanes, class Real, class Write>
__device__ __forceinline__ void make_hidden_rows(const JointView& joint, const NodeAt* nodes,
                                                 int count, int padded, Write write) {
  if constexpr (sizeof(Element) == 2 && kPlanes == 1) {
    if (!joint.has_mask() && joint.encoder.aligned && joint.predictor.aligned &&
        joint.encoder.tensor.dtype == kElementType<Element> &&
        joint.predictor.tensor.dtype == kElementType<Element> && joint.hidden == padded) {
      make_hidden_directly<Element>(joint, nodes, count, padded, write);
      return;
    }
  }
  const int pieces = padded / 8;
  const int total = count * pieces;
  constexpr int kAhead = 4;
  for (int base = static_cast<int>(threadIdx.x); base < total; base += kAhead * kThreads) {
    int row[kAhead];
    NodeAt at[kAhead];
    Piece from_e[kAhead];
    Piece from_p[kAhead];
#pragma unroll
    for (int r = 0; r < kAhead; ++r) {
      const int index = min(base + r * kThreads, total - 1);
      row[r] = index / pieces;
      at[r] = nodes[row[r]];
      const NodeAt read = at[r].b < 0 ? NodeAt{} : at[r];
      from_e[r] = {read.b, read.t, (index - row[r] * pieces) * 8};
      from_p[r] = {read.b, read.u, from_e[r].first};
    }
    Real e[kAhead][8];
    Real p[kAhead][8];
    load_pieces(joint.encoder, from_e, joint.hidden, e);
    load_pieces(joint.predictor, from_p, joint.hidden, p);
#pragma unroll
    for (int r = 0; r < kAhead; ++r) {
      if (base + r * kThreads >= total) continue;
      Real x[8];
      const Real factor = at[r].b < 0 ? Real(0) : predictor_factor<Real>(joint, at[r].b, at[r].u);
#pragma unroll
      for (int n = 0; n < 8; ++n) x[n] = e[r][n] + factor * p[r][n];
      if (at[r].b >= 0) {
        make_units(joint, at[r], from_e[r].first, x);
      } else {
#pragma unroll
        for (int n = 0; n < 8; ++n) x[n] = Real(0);
      }
      write(row[r], from_e[r].first, x);
    }
  }
}

/// e^(x - base) with the base prepared once: approximate in float32, 2^-22, or exact to rounding.
template <class Real, bool kApproximate>
class Exponential {
 public:
  __device__ __forceinline__ explicit Exponential(Real base)
      : base_(kApproximate ? base * Real(kLog2E) : base) {}
  __device__ __forceinline__ Real operator()(Real x) const {
    if constexpr (kApproximate) {
      float y;
      asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(fmaf(x, kLog2E, -base_)));
      return y;
    } else {
      return exp(x - base_);
    }
  }

 private:
  static constexpr float kLog2E = 1.44269504088896340736f;
  Real base_;
};

/// Which columns of a tile belong to a group for one label, in columns of the tile.
struct TileColumns {
  int begin, end;
  int holes[2];

  __device__ __forceinline__ TileColumns(const Group& group, int label, std::int64_t first,
                                         std::int64_t columns)
      : begin(clip(group.begin.offset - first)),
        end(clip(min(group.end.offset, columns) - first)),
        holes{group.exclude_fixed ? clip(group.excluded.offset - first) : -1,
              group.exclude_label && label >= 0 ? clip(label - first) : -1} {}

  __device__ __forceinline__ bool contains(int column) const {
    return column >= begin && column < end && column != holes[0] && column != holes[1];
  }
  /// Whether it holds the first `width` columns of the tile, and whether any.
  __device__ __forceinline__ bool all(int width) const {
    return begin <= 0 && end >= width && outside(holes[0], width) && outside(holes[1], width);
  }
  __device__ __forceinline__ bool none() const { return begin >= end; }

 private:
  static constexpr int kFar = 1 << 20;
  static __device__ __forceinline__ int clip(std::int64_t column) {
    return static_cast<int>(min(max(column, std::int64_t{-1}), std::int64_t{kFar}));
  }
  static __device__ __forceinline__ bool outside(int hole, int width) {
    return hole < 0 || hole >= width;
  }
};

}  // namespace transducer::cuda
