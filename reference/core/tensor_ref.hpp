// SPDX-License-Identifier: Apache-2.0
//
// TensorRef: borrowed memory without a compile-time type, as a caller hands it over: a pointer, an
// element type, a device, a rank of 0 to 4, extents and strides in elements (any sign, 0 for a
// broadcast axis). An absent optional array has rank -1. `read_*` and `write_real` move one element
// or one row of the last axis between the caller's type and double (or int64) on the host.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "reference/core/device.hpp"
#include "reference/core/dtype.hpp"

namespace transducer {

inline constexpr int kMaxRank = 4;

struct TensorRef {
  void* data = nullptr;
  DType dtype = DType::float32;
  Device device = {};
  int rank = -1;
  std::int64_t extents[kMaxRank] = {};
  std::int64_t strides[kMaxRank] = {};  // elements
  bool read_only = false;

  bool defined() const { return rank >= 0; }
  std::int64_t extent(int axis) const { return extents[axis]; }
  std::int64_t size() const;

  /// Address offset, in elements, of the given leading indices (missing ones count as 0).
  std::int64_t offset(std::initializer_list<std::int64_t> indices) const;

  /// "[4, 10, 6, 30]", for messages.
  std::string shape_string() const;
};

/// A row-major reference to contiguous host memory.
TensorRef contiguous_ref(void* data, DType dtype, std::initializer_list<std::int64_t> extents);

/// `tensor` seen with the given extents by NumPy's broadcasting rule: axes align on the right, and
/// an axis of extent 1 (or a missing one) gets stride 0. Returns false if the shapes do not
/// broadcast.
bool broadcast_to(const TensorRef& tensor, std::initializer_list<std::int64_t> extents,
                  TensorRef* broadcast);

/// One element as a double (real types and bool) or as an integer (index types).
double read_real(const TensorRef& tensor, std::initializer_list<std::int64_t> indices);
std::int64_t read_index(const TensorRef& tensor, std::initializer_list<std::int64_t> indices);

/// Stores a double, rounded once to the tensor's type.
void write_real(const TensorRef& tensor, std::initializer_list<std::int64_t> indices, double value);

/// The row of the last axis at the given leading indices, widened to double; the reverse.
void read_row(const TensorRef& tensor, std::initializer_list<std::int64_t> leading,
              std::span<double> row);
void write_row(const TensorRef& tensor, std::initializer_list<std::int64_t> leading,
               std::span<const double> row);

/// Sets every element.
void fill_real(const TensorRef& tensor, double value);

}  // namespace transducer
