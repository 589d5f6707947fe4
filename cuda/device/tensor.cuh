// SPDX-License-Identifier: Apache-2.0
//
// Elements of a caller's array of any real type and any strides, in device code: for the small arrays (scores
// of arcs and ends, lattice outputs) whose type is not worth an instantiation.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "reference/core/tensor_ref.hpp"

namespace transducer::cuda {

__device__ inline std::int64_t tensor_offset(const TensorRef& x, std::int64_t i, std::int64_t j = 0,
                                             std::int64_t k = 0, std::int64_t l = 0) {
  return i * x.strides[0] + j * x.strides[1] + k * x.strides[2] + l * x.strides[3];
}

__device__ inline double load_real(const TensorRef& x, std::int64_t offset) {
  switch (x.dtype) {
    case DType::float64:
      return static_cast<const double*>(x.data)[offset];
    case DType::float32:
      return static_cast<double>(static_cast<const float*>(x.data)[offset]);
    case DType::bfloat16:
      return static_cast<double>(
          __bfloat162float(static_cast<const __nv_bfloat16*>(x.data)[offset]));
    case DType::float16:
      return static_cast<double>(__half2float(static_cast<const __half*>(x.data)[offset]));
    default:
      return 0.0;
  }
}

__device__ inline void store_real(const TensorRef& x, std::int64_t offset, double value) {
  switch (x.dtype) {
    case DType::float64:
      static_cast<double*>(x.data)[offset] = value;
      break;
    case DType::float32:
      static_cast<float*>(x.data)[offset] = static_cast<float>(value);
      break;
    case DType::bfloat16:
      static_cast<__nv_bfloat16*>(x.data)[offset] = __double2bfloat16(value);
      break;
    case DType::float16:
      static_cast<__half*>(x.data)[offset] = __double2half(value);
      break;
    default:
      break;
  }
}

}  // namespace transducer::cuda
