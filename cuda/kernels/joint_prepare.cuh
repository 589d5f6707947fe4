// SPDX-License-Identifier: Apache-2.0
//
// Small kernels around the joint source's products: W and c padded and in the product's elements, where chunks
// of kept rows begin, and dW and dc from their partial sums. Each moves its arrays once.
#pragma once

#include "cuda/kernels/joint_gradient.cuh"

namespace transducer::cuda {

template <class Element>
struct PrepareWeightParams {
  TensorRef weight;  // [K, H]
  TensorRef bias;    // [K], optional
  std::int64_t columns;
  std::int64_t hidden;
  std::int64_t padded_columns;
  int padded_hidden;
  bool finite;                ///< NaN and infinities become 0: no kept row reads their columns
  Element* out;               // [planes, K padded, H padded]
  RealOf<Element>* out_bias;  // [K padded]
};

template <class Element, int kPlanes>
__global__ void prepare_weight_kernel(const __grid_constant__ PrepareWeightParams<Element> p) {
  using Real = RealOf<Element>;
  const std::int64_t pieces = p.padded_hidden / 8;
  const std::int64_t total = p.padded_columns * pieces;
  const std::int64_t plane = p.padded_columns * p.padded_hidden;
  for (std::int64_t index = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
       index < total; index += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t k = index / pieces;
    const std::int64_t first = (index - k * pieces) * 8;
    Real x[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      x[n] = Real(0);
      if (k < p.columns && first + n < p.hidden) {
        x[n] =
            load_unit<Real>(p.weight, k * p.weight.strides[0] + (first + n) * p.weight.strides[1]);
      }
      if (p.finite && !isfinite(x[n])) x[n] = Real(0);
    }
    store_planes<kPlanes>(x, p.out + k * p.padded_hidden + first, plane);
    if (first == 0) {
      p.out_bias[k] = k < p.columns && p.bias.rank >= 0
                          ? load_unit<Real>(p.bias, k * p.bias.strides[0])
                          : Real(0);
    }
  }
}

struct PrepareChunksParams {
  RowSet rows;
  std::int64_t chunk_rows;
  std::int64_t chunks;
  std::int64_t* chunk_frames;  // [chunks + 1]
  const double* scale;         // [B]
  int batch;
  float* power;  // [1]
  unsigned* arrived;
};

template <class Element>
__global__ void prepare_chunks_kernel(const __grid_constant__ PrepareChunksParams p) {
  const std::int64_t chunk = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (chunk <= p.chunks) {
    // The first frame with offset >= chunk * chunk_rows.
    std::int64_t low = 0;
    std::int64_t high = p.rows.num_frames;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (p.rows.offset[middle] >= chunk * p.chunk_rows) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    p.chunk_frames[chunk] = low;
  }
  if (blockIdx.x > 0) return;
  if (threadIdx.x < 32) {
    double mine = 0.0;
    for (int b = static_cast<int>(threadIdx.x); b < p.batch; b += 32) {
      const double size = fabs(p.scale[b]);
      if (isfinite(size)) mine = fmax(mine, size);
    }
    for (int mask = 16; mask > 0; mask /= 2) mine = fmax(mine, __shfl_xor_sync(~0u, mine, mask));
    if (threadIdx.x == 0) {
      // float16: G is brought into the middle of its range.
      const bool scale_up = std::is_same_v<Element, __half>;
      *p.power = scale_up && mine > 0.0 ? exp2f(static_cast<float>(11 - ilogb(mine))) : 1.0f;
      *p.arrived = 0;
    }
  }
}

template <class Real>
struct FinishWeightParams {
  const Real* weight_sums;  // [splits, K padded, H padded]
  const Real* bias_sums;    // [splits, K padded]
  const float* power;
  int splits;
  std::int64_t columns;
  std::int64_t hidden;
  std::int64_t padded_columns;
  int padded_hidden;
  TensorRef weight_gradient;  // [K, H]
  TensorRef bias_gradient;    // [K]
};

template <class Real>
__global__ void finish_weight_kernel(const __grid_constant__ FinishWeightParams<Real> p) {
  const Real inverse = static_cast<Real>(1.0 / static_cast<double>(*p.power));
  const std::int64_t total = p.columns * p.padded_hidden;
  for (std::int64_t index = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
       index < total; index += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t k = index / p.padded_hidden;
    const std::int64_t h = index - k * p.padded_hidden;
    if (p.weight_gradient.rank >= 0 && h < p.hidden) {
      Real sum = 0;
      for (int s = 0; s < p.splits; ++s) {
        sum += p.weight_sums[(s * p.padded_columns + k) * p.padded_hidden + h];
      }
      store_unit(p.weight_gradient,
                 k * p.weight_gradient.strides[0] + h * p.weight_gradient.strides[1],
                 sum * inverse);
    }
    if (p.bias_gradient.rank >= 0 && h == 0) {
      Real sum = 0;
      for (int s = 0; s < p.splits; ++s) sum += p.bias_sums[s * p.padded_columns + k];
      store_unit(p.bias_gradient, k * p.bias_gradient.strides[0], sum * inverse);
    }
  }
}

/// Zeros in an array of rank 3.
template <class Real>
__global__ void zero_rows_kernel(TensorRef to) {
  const std::int64_t total = to.extents[0] * to.extents[1] * to.extents[2];
  for (std::int64_t index = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
       index < total; index += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t row = index / to.extents[2];
    store_unit(to,
               row / to.extents[1] * to.strides[0] + row % to.extents[1] * to.strides[1] +
                   index % to.extents[2] * to.strides[2],
               Real(0));
  }
}

}  // namespace transducer::cuda
