// SPDX-License-Identifier: Apache-2.0
//
// What the phases of the joint source's backward share: parameters, the chunk they work on, and the barrier
// between them.
#pragma once

#include "cuda/call_view.hpp"
#include "cuda/device/packed_rows.cuh"

namespace transducer::cuda {

inline constexpr int kListRows = 64;  // rows that a block lists and makes h for at a time

/// What turns a row of logits into its gradient; taps from the third on are read from memory.
template <class Real, int kGroups>
struct RowFlow {
  Real scale;
  int label;
  Real coefficient[kGroups];
  Real log_sum[kGroups];
  Real amount[2];
};

template <class Element>
struct JointGradientParams {
  using Real = RealOf<Element>;

  CallView call;
  JointView joint;
  RowSet rows;
  const Real* node_scores;  // [S, plane]
  const Real* posteriors;   // [A, plane]
  const double* scale;      // [B]
  const float* power;       // [1] power of two that G is multiplied by

  const Element* weight;  // [planes, K padded, H padded], finite
  std::int64_t weight_plane;
  const Real* bias;                  // [K padded]
  int padded_hidden;                 // H padded to kStep
  int range;                         // columns of G at a time
  int splits;                        // of a chunk's rows in dW
  std::int64_t chunk_rows;           // rows after which a chunk ends with its frame
  std::int64_t capacity;             // rows of the arrays below, a multiple of the tile's
  const std::int64_t* chunk_frames;  // [chunks + 1] first frame of each

  Element* hidden;        // [planes, capacity, H padded]
  Element* gradient;      // [planes, capacity, range]
  Real* hidden_gradient;  // [capacity, H padded]
  Real* coefficient;      // [G, capacity]
  Real* amount;           // [taps, capacity]
  Real* row_scale;        // [capacity]
  Real* log_sum;          // [G, capacity]
  int* label;             // [capacity]
  int* row_u;             // [2, capacity]
  Real* weight_sums;      // [splits, K padded, H padded]
  Real* bias_sums;        // [splits, K padded]
  Real* carry;            // [2, U+1, H padded]
  unsigned* arrived;      // [1], 0 at launch

  TensorRef encoder_gradient;    // [B, T, H]
  TensorRef predictor_gradient;  // [B, U+1, H]
  bool wants_inputs;
  bool wants_weight;
};

template <class Real>
__device__ __forceinline__ void store_unit(const TensorRef& x, std::int64_t offset, Real value) {
  switch (x.dtype) {
    case DType::float64:
      static_cast<double*>(x.data)[offset] = value;
      break;
    case DType::float32:
      static_cast<float*>(x.data)[offset] = static_cast<float>(value);
      break;
    case DType::bfloat16:
      static_cast<__nv_bfloat16*>(x.data)[offset] = __float2bfloat16_rn(static_cast<float>(value));
      break;
    case DType::float16:
      static_cast<__half*>(x.data)[offset] = __float2half_rn(static_cast<float>(value));
      break;
    default:
      break;
  }
}

/// Rows [row_begin, row_begin + count) of whole frames.
struct Chunk {
  std::int64_t frames_begin = 0;
  std::int64_t frames_end = 0;
  std::int64_t row_begin = 0;
  int count = 0;
  int parity = 0;  ///< which of two copies of the arrays that outlive a chunk
};

template <class Element>
__device__ __forceinline__ Chunk chunk_at(const JointGradientParams<Element>& p, std::int64_t index,
                                          std::int64_t chunks) {
  Chunk chunk;
  chunk.frames_begin = p.chunk_frames[index];
  chunk.frames_end = index + 1 == chunks ? p.rows.num_frames : p.chunk_frames[index + 1];
  chunk.row_begin = p.rows.offset[chunk.frames_begin];
  chunk.count = static_cast<int>(p.rows.offset[chunk.frames_end] - chunk.row_begin);
  chunk.parity = static_cast<int>(index % 2);
  return chunk;
}

/// Waits until every block of the launch has arrived `round` times.
__device__ __forceinline__ void meet(unsigned* arrived, unsigned round) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1u);
    const unsigned target = round * gridDim.x;
    while (*static_cast<volatile unsigned*>(arrived) < target) __nanosleep(32);
    __threadfence();
  }
  __syncthreads();
}

/// Items of `total` that a block has if item i belongs to block i mod grid.
__device__ __forceinline__ int share_of(int total, int block) {
  const int grid = static_cast<int>(gridDim.x);
  return block < total ? (total - block + grid - 1) / grid : 0;
}

/// Columns of G in the range from `begin` on.
template <class Element>
__device__ __forceinline__ int range_columns(const JointGradientParams<Element>& p,
                                             std::int64_t begin) {
  return static_cast<int>(min(static_cast<std::int64_t>(p.range), p.call.columns - begin));
}

}  // namespace transducer::cuda
