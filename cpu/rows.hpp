// SPDX-License-Identifier: Apache-2.0
//
// Rows in and out of a caller's array: the arithmetic type of a call, rows that can be read where they
// lie, and rows that must be widened or rounded on the way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "reference/core/tensor_ref.hpp"

namespace transducer::cpu {

template <class Real>
constexpr DType kDTypeOf = std::is_same_v<Real, double> ? DType::float64 : DType::float32;

/// Doubles of a thread's row buffer: a row on the way in, then rows on the way out. Short rows go out
/// several at a time, in the 16 KiB that stay in a first-level cache.
inline std::int64_t row_buffer_size(std::int64_t columns) {
  return columns + std::max<std::int64_t>(columns, 2048);
}

/// Rows that the second part of the buffer holds.
template <class Real>
std::int64_t rows_out(std::int64_t columns) {
  constexpr std::int64_t kRealsPerDouble = sizeof(Real) == sizeof(double) ? 1 : 2;
  return (row_buffer_size(columns) - columns) * kRealsPerDouble / columns;
}

/// Whether rows of the last axis can be used in place as contiguous Real.
template <class Real>
bool rows_in_place(const TensorRef& tensor) {
  const int last = tensor.rank - 1;
  return tensor.dtype == kDTypeOf<Real> && (tensor.strides[last] == 1 || tensor.extents[last] <= 1);
}

/// The row at these leading indices: where it lies, or copied into `buffer`.
template <class Real>
const Real* row_or_copy(const TensorRef& tensor, std::initializer_list<std::int64_t> leading,
                        Real* buffer) {
  const std::int64_t offset = tensor.offset(leading);
  if (rows_in_place<Real>(tensor)) return static_cast<const Real*>(tensor.data) + offset;
  const std::int64_t stride = tensor.strides[tensor.rank - 1];
  const std::int64_t count = tensor.extents[tensor.rank - 1];
  visit_real(tensor.dtype, [&]<class Scalar>() {
    const Scalar* source = static_cast<const Scalar*>(tensor.data) + offset;
    for (std::int64_t i = 0; i < count; ++i) buffer[i] = static_cast<Real>(source[i * stride]);
  });
  return buffer;
}

/// Rounds a row into an array that rows_in_place() refuses.
template <class Real>
void round_row(const TensorRef& tensor, std::initializer_list<std::int64_t> leading,
               const Real* row) {
  const std::int64_t stride = tensor.strides[tensor.rank - 1];
  const std::int64_t count = tensor.extents[tensor.rank - 1];
  visit_real(tensor.dtype, [&]<class Scalar>() {
    Scalar* target = static_cast<Scalar*>(tensor.data) + tensor.offset(leading);
    for (std::int64_t i = 0; i < count; ++i) target[i * stride] = static_cast<Scalar>(row[i]);
  });
}

}  // namespace transducer::cpu
