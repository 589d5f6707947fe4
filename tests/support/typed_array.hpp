// SPDX-License-Identifier: Apache-2.0
//
// An array of any real type that owns its memory and may lie in it in any way: contiguous, spread,
// shifted or reversed along its last axes. What lies between its elements must never change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "reference/core/tensor_ref.hpp"

namespace transducer::testing {

enum class Layout { contiguous, shifted, spread, reversed };

class TypedArray {
 public:
  TypedArray() = default;

  /// An array of these extents, every element the number `fill`.
  TypedArray(DType dtype, std::vector<std::int64_t> extents, Layout layout = Layout::contiguous,
             double fill = -12345.0)
      : defined_(true) {
    ref_.dtype = dtype;
    ref_.rank = static_cast<int>(extents.size());
    // Spread: two elements apart, an odd gap after each row. Reversed: every axis runs backwards.
    std::int64_t step = layout == Layout::spread ? 2 : 1;
    std::int64_t last = 0;
    for (int axis = ref_.rank - 1; axis >= 0; --axis) {
      ref_.extents[axis] = extents[static_cast<std::size_t>(axis)];
      ref_.strides[axis] = step;
      last += (ref_.extents[axis] > 0 ? ref_.extents[axis] - 1 : 0) * step;
      step = step * ref_.extents[axis] + (layout == Layout::spread ? 3 : 0);
    }
    const std::int64_t shift = layout == Layout::contiguous ? 0 : 1;
    memory_.assign(static_cast<std::size_t>((last + 1 + 2 * shift) * bytes()), std::byte{0x5a});
    first_ = shift;
    if (layout == Layout::reversed) {
      first_ += last;
      for (int axis = 0; axis < ref_.rank; ++axis) ref_.strides[axis] = -ref_.strides[axis];
    }
    fill_real(ref(), fill);
    pristine_ = memory_;
  }

  /// The same, holding `values` in row-major order, rounded.
  TypedArray(DType dtype, std::vector<std::int64_t> extents, const std::vector<double>& values,
             Layout layout = Layout::contiguous)
      : TypedArray(dtype, std::move(extents), layout) {
    std::size_t i = 0;
    for_each([&](std::byte* at) { store(at, values[i++]); });
    pristine_ = memory_;
  }

  TensorRef ref() {
    TensorRef ref = ref_;
    if (defined_) ref.data = memory_.data() + first_ * bytes();
    return ref;
  }

  /// Row-major, widened; empty if undefined.
  std::vector<double> values() {
    std::vector<double> all;
    if (defined_) for_each([&](std::byte* at) { all.push_back(load(at)); });
    return all;
  }

  /// Whether the memory between the elements still is what it was.
  bool gaps_are_intact() {
    std::vector<std::byte> now = memory_;
    if (defined_) {
      for_each([&](std::byte* at) {
        const auto offset = static_cast<std::size_t>(at - memory_.data());
        std::memcpy(now.data() + offset, pristine_.data() + offset, dtype_bytes(ref_.dtype));
      });
    }
    return now == pristine_;
  }

 private:
  std::int64_t bytes() const { return static_cast<std::int64_t>(dtype_bytes(ref_.dtype)); }

  template <class Visit>
  void for_each(Visit&& visit) {
    const TensorRef all = ref();
    const std::int64_t size = all.size();
    for (std::int64_t i = 0; i < size; ++i) {
      std::int64_t rest = i;
      std::int64_t offset = 0;
      for (int axis = all.rank - 1; axis >= 0; --axis) {
        offset += rest % all.extents[axis] * all.strides[axis];
        rest /= all.extents[axis];
      }
      visit(static_cast<std::byte*>(all.data) + offset * bytes());
    }
  }

  void store(std::byte* at, double value) {
    write_real(contiguous_ref(at, ref_.dtype, {}), {}, value);
  }
  double load(std::byte* at) { return read_real(contiguous_ref(at, ref_.dtype, {}), {}); }

  TensorRef ref_;
  bool defined_ = false;
  std::int64_t first_ = 0;
  std::vector<std::byte> memory_, pristine_;
};

/// `values` as they are after rounding to `dtype`.
inline std::vector<double> rounded(const std::vector<double>& values, DType dtype) {
  if (dtype == DType::float64) return values;
  return TypedArray(dtype, {static_cast<std::int64_t>(values.size())}, values).values();
}

}  // namespace transducer::testing
