// SPDX-License-Identifier: Apache-2.0
//
// Rows of a dense array through a warp: 16 bytes a lane wherever a row is contiguous, single elements at its
// unaligned ends, and everywhere if its elements are strided. Rows of odd width start at any address; only the
// part between the first and the last multiple of 16 bytes is moved in vectors.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "reference/core/dtype.hpp"

namespace transducer::cuda {

template <class Real>
__device__ __forceinline__ Real to_real(double x) {
  return static_cast<Real>(x);
}
template <class Real>
__device__ __forceinline__ Real to_real(float x) {
  return static_cast<Real>(x);
}
template <class Real>
__device__ __forceinline__ Real to_real(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
template <class Real>
__device__ __forceinline__ Real to_real(__half x) {
  return __half2float(x);
}

template <class Storage, class Real>
__device__ __forceinline__ Storage to_storage(Real x) {
  if constexpr (sizeof(Storage) >= 4) {
    return static_cast<Storage>(x);
  } else if constexpr (std::is_same_v<Storage, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return __float2half_rn(x);
  }
}

/// Elements that a lane moves at a time.
template <class Storage>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(Storage));

template <class Storage>
union Vector {
  uint4 raw;
  Storage element[kVector<Storage>];
  __device__ Vector() {}
};

template <class Storage>
__device__ __forceinline__ Vector<Storage> load_vector(const Storage* p) {
  Vector<Storage> v;
  v.raw = *reinterpret_cast<const uint4*>(p);
  return v;
}

/// Past the caches' usual order: a gradient is written once and not read by this call.
template <class Storage>
__device__ __forceinline__ void store_vector(Storage* p, const Vector<Storage>& v) {
  __stcs(reinterpret_cast<uint4*>(p), v.raw);
}

/// Elements before the first multiple of 16 bytes.
template <class Storage>
__device__ __forceinline__ int unaligned_head(const Storage* p) {
  const auto past = static_cast<int>(reinterpret_cast<std::uintptr_t>(p) % 16);
  return past == 0 ? 0 : (16 - past) / static_cast<int>(sizeof(Storage));
}

/// How a row that is worked on element by element splits: `head` single elements, then `vectors`, then single
/// elements from `tail` on.
struct RowParts {
  std::int64_t head;
  std::int64_t vectors;
  std::int64_t tail;
};

/// All single elements unless `in_vectors`.
template <class Storage>
__device__ __forceinline__ RowParts row_parts(const Storage* p, std::int64_t columns,
                                              bool in_vectors) {
  if (!in_vectors) return {columns, 0, columns};
  const std::int64_t head = min(static_cast<std::int64_t>(unaligned_head(p)), columns);
  const std::int64_t vectors = (columns - head) / kVector<Storage>;
  return {head, vectors, head + vectors * kVector<Storage>};
}

/// Where a lane's elements must not depend on the row's address: runs of kVector columns from k on, whatever
/// the alignment. A run inside an unaligned row comes from two aligned loads, shifted into place; the first and
/// the last runs of such a row, and strided rows, come element by element.
template <class Storage>
class RunReader {
 public:
  __device__ RunReader(const Storage* row, std::int64_t stride, std::int64_t columns)
      : row_(row),
        stride_(stride),
        columns_(columns),
        past_(static_cast<int>(reinterpret_cast<std::uintptr_t>(row) % 16)) {}

  /// Columns k to k + kVector - 1; those past the row are `fill`.
  __device__ __forceinline__ void read(std::int64_t k, Storage fill, Vector<Storage>& out) const {
    constexpr int kN = kVector<Storage>;
    const bool inside = k + 2 * kN <= columns_ && k > 0;
    if (stride_ == 1 && (past_ == 0 ? k + kN <= columns_ : inside)) {
      const uint4* first =
          reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(row_ + k) - past_);
      out.raw = past_ == 0 ? *first : shifted(first[0], first[1]);
      return;
    }
#pragma unroll
    for (int i = 0; i < kN; ++i) out.element[i] = k + i < columns_ ? row_[(k + i) * stride_] : fill;
  }

 private:
  /// 16 bytes from byte past_ of the two, which is the same for all lanes.
  __device__ __forceinline__ uint4 shifted(uint4 low, uint4 high) const {
    unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if (past_ & 8) {
#pragma unroll
      for (int i = 0; i < 6; ++i) words[i] = words[i + 2];
    }
    if (past_ & 4) {
#pragma unroll
      for (int i = 0; i < 5; ++i) words[i] = words[i + 1];
    }
    const int bits = 8 * (past_ & 3);
    return {__funnelshift_r(words[0], words[1], bits), __funnelshift_r(words[1], words[2], bits),
            __funnelshift_r(words[2], words[3], bits), __funnelshift_r(words[3], words[4], bits)};
  }

  const Storage* row_;
  std::int64_t stride_;
  std::int64_t columns_;
  int past_;  ///< bytes that the row starts after a multiple of 16
};

/// Calls visit(dtype's CUDA type) on the host.
template <class Function>
decltype(auto) visit_storage(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::float64:
      return function.template operator()<double>();
    case DType::float32:
      return function.template operator()<float>();
    case DType::bfloat16:
      return function.template operator()<__nv_bfloat16>();
    case DType::float16:
      return function.template operator()<__half>();
    default:
      throw Unsupported(concat("dtype ", dtype_name(dtype), " is not a real type"));
  }
}

}  // namespace transducer::cuda
