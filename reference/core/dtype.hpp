// SPDX-License-Identifier: Apache-2.0
//
// Element types of the arrays that callers hand over, and the one way to dispatch on them:
//
//   visit_real(dtype, [&]<class Scalar>() { ... });
//
// Real types carry scores and gradients; index types carry labels and lengths.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reference/core/error.hpp"
#include "reference/core/half.hpp"

namespace transducer {

enum class DType : std::uint8_t { float64, float32, bfloat16, float16, int64, int32, boolean };

inline const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return "float64";
    case DType::float32:
      return "float32";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float16:
      return "float16";
    case DType::int64:
      return "int64";
    case DType::int32:
      return "int32";
    case DType::boolean:
      return "bool";
  }
  return "unknown";
}

constexpr std::size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::float64:
    case DType::int64:
      return 8;
    case DType::float32:
    case DType::int32:
      return 4;
    case DType::bfloat16:
    case DType::float16:
      return 2;
    case DType::boolean:
      return 1;
  }
  return 0;
}

constexpr bool is_real(DType dtype) {
  return dtype == DType::float64 || dtype == DType::float32 || dtype == DType::bfloat16 ||
         dtype == DType::float16;
}

constexpr bool is_index(DType dtype) { return dtype == DType::int64 || dtype == DType::int32; }

/// Calls `function.template operator()<Scalar>()` with the C++ type of a real dtype.
/// Throws Unsupported for any other.
template <class Function>
decltype(auto) visit_real(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::float64:
      return function.template operator()<double>();
    case DType::float32:
      return function.template operator()<float>();
    case DType::bfloat16:
      return function.template operator()<BFloat16>();
    case DType::float16:
      return function.template operator()<Float16>();
    default:
      throw Unsupported(
          concat("dtype ", dtype_name(dtype),
                 " is not a real type; supported are float64, float32, bfloat16, float16"));
  }
}

}  // namespace transducer
