// SPDX-License-Identifier: Apache-2.0
//
// View<T, Rank>: borrowed memory with a type. A pointer, extents and strides (both in elements,
// both signed 64-bit); v(i, j, k) reads and writes. Trivially copyable, usable on host and device,
// frees nothing. std::mdspan is not in GCC 12, so this is what stands in for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "reference/core/macros.hpp"

namespace transducer {

template <class T, int Rank>
struct View {
  static_assert(Rank >= 1 && Rank <= 4);

  T* data = nullptr;
  std::int64_t extents[Rank] = {};
  std::int64_t strides[Rank] = {};

  TX_HD constexpr std::int64_t extent(int axis) const { return extents[axis]; }

  template <class... Indices>
    requires(sizeof...(Indices) == Rank)
  TX_HD constexpr T& operator()(Indices... indices) const {
    const std::int64_t index[Rank] = {static_cast<std::int64_t>(indices)...};
    std::int64_t offset = 0;
    for (int axis = 0; axis < Rank; ++axis) offset += index[axis] * strides[axis];
    return data[offset];
  }

  TX_HD constexpr std::int64_t size() const {
    std::int64_t product = 1;
    for (int axis = 0; axis < Rank; ++axis) product *= extents[axis];
    return product;
  }

  /// A view of const elements over the same memory.
  TX_HD constexpr operator View<const T, Rank>() const
    requires(!std::is_const_v<T>)
  {
    View<const T, Rank> view;
    view.data = data;
    for (int axis = 0; axis < Rank; ++axis) {
      view.extents[axis] = extents[axis];
      view.strides[axis] = strides[axis];
    }
    return view;
  }
};

/// A row-major view of `data`; `extents` gives the rank.
template <class T, class... Extents>
TX_HD constexpr View<T, static_cast<int>(sizeof...(Extents))> row_major_view(T* data,
                                                                             Extents... extents) {
  constexpr int kRank = static_cast<int>(sizeof...(Extents));
  View<T, kRank> view{data, {static_cast<std::int64_t>(extents)...}, {}};
  std::int64_t stride = 1;
  for (int axis = kRank - 1; axis >= 0; --axis) {
    view.strides[axis] = stride;
    stride *= view.extents[axis];
  }
  return view;
}

}  // namespace transducer
