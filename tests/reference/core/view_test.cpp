// SPDX-License-Identifier: Apache-2.0
#include "reference/core/view.hpp"

#include <cstdint>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

namespace transducer {
namespace {

TEST(View, RowMajorCountsTheLastAxisFastest) {
  std::vector<int> memory(24);
  for (int i = 0; i < 24; ++i) memory[static_cast<std::size_t>(i)] = i;
  const auto view = row_major_view(memory.data(), 2, 3, 4);
  EXPECT_EQ(view.size(), 24);
  EXPECT_EQ(view.extent(1), 3);
  EXPECT_EQ(view.strides[0], 12);
  EXPECT_EQ(view.strides[1], 4);
  EXPECT_EQ(view.strides[2], 1);
  EXPECT_EQ(view(0, 0, 0), 0);
  EXPECT_EQ(view(1, 2, 3), 23);
  EXPECT_EQ(view(1, 0, 2), 14);
}

TEST(View, WritesThroughAndReadsWithAnyStride) {
  std::vector<int> memory{1, 2, 3, 4, 5, 6};
  const View<int, 2> transposed{memory.data(), {3, 2}, {1, 3}};
  EXPECT_EQ(transposed(2, 1), 6);
  transposed(0, 1) = 40;
  EXPECT_EQ(memory[3], 40);
  const View<int, 1> reversed{memory.data() + 5, {6}, {-1}};
  EXPECT_EQ(reversed(0), 6);
  EXPECT_EQ(reversed(5), 1);
  const View<int, 2> repeated{memory.data(), {100, 6}, {0, 1}};
  EXPECT_EQ(repeated(99, 1), 2);
  EXPECT_EQ(repeated.size(), 600);
}

TEST(View, OffsetsPassTwoToTheThirtyOne) {
  // The base lies so far back that only 64-bit arithmetic comes out at `value`.
  const std::int64_t far = std::int64_t{3} << 31;
  int value = 7;
  const auto base =
      reinterpret_cast<std::uintptr_t>(&value) - static_cast<std::uintptr_t>(far) * sizeof(int);
  // A view may begin far outside the memory that it reads.
  auto* const begin = reinterpret_cast<int*>(base);  // NOLINT(performance-no-int-to-ptr)
  const View<int, 1> view{begin, {far + 1}, {1}};
  EXPECT_EQ(&view(far), &value);
  EXPECT_EQ((row_major_view<int>(nullptr, 1 << 20, 1 << 20)).size(), std::int64_t{1} << 40);
}

TEST(View, IsAPlainValueThatBecomesConst) {
  static_assert(std::is_trivially_copyable_v<View<double, 3>>);
  static_assert(std::is_convertible_v<View<double, 2>, View<const double, 2>>);
  static_assert(!std::is_convertible_v<View<const double, 2>, View<double, 2>>);
  std::vector<double> memory{1.5, 2.5};
  const View<const double, 2> view = row_major_view(memory.data(), 1, 2);
  EXPECT_EQ(view(0, 1), 2.5);
  const View<double, 1> nothing;
  EXPECT_EQ(nothing.data, nullptr);
  EXPECT_EQ(nothing.size(), 0);
}

}  // namespace
}  // namespace transducer
