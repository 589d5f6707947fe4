// SPDX-License-Identifier: Apache-2.0
#include "reference/core/tensor_ref.hpp"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/messages.hpp"

namespace transducer {
namespace {

using testing::throws;

TEST(TensorRef, ContiguousRefIsRowMajor) {
  std::vector<float> memory(24);
  const TensorRef t = contiguous_ref(memory.data(), DType::float32, {2, 3, 4});
  EXPECT_TRUE(t.defined());
  EXPECT_EQ(t.rank, 3);
  EXPECT_EQ(t.size(), 24);
  EXPECT_EQ(t.extent(2), 4);
  EXPECT_EQ(t.offset({1, 2, 3}), 23);
  EXPECT_EQ(t.offset({1, 2}), 20);
  EXPECT_EQ(t.offset({}), 0);
  EXPECT_EQ(t.shape_string(), "[2, 3, 4]");
  EXPECT_FALSE(TensorRef{}.defined());
}

TEST(TensorRef, AScalarHasNoAxesAndOneElement) {
  double value = 0.0;
  const TensorRef t = contiguous_ref(&value, DType::float64, {});
  EXPECT_TRUE(t.defined());
  EXPECT_EQ(t.size(), 1);
  EXPECT_EQ(t.shape_string(), "[]");
  write_real(t, {}, 2.5);
  EXPECT_EQ(value, 2.5);
  fill_real(t, -1.0);
  EXPECT_EQ(read_real(t, {}), -1.0);
}

TEST(TensorRef, BroadcastAlignsOnTheRight) {
  double memory[6] = {1, 2, 3, 4, 5, 6};
  TensorRef wide;
  const TensorRef row = contiguous_ref(memory, DType::float64, {3});
  ASSERT_TRUE(broadcast_to(row, {4, 2, 3}, &wide));
  EXPECT_EQ(wide.rank, 3);
  EXPECT_EQ(read_real(wide, {3, 1, 2}), 3.0);
  EXPECT_EQ(wide.strides[0], 0);
  const TensorRef middle = contiguous_ref(memory, DType::float64, {2, 1, 3});
  ASSERT_TRUE(broadcast_to(middle, {2, 5, 3}, &wide));
  EXPECT_EQ(read_real(wide, {1, 4, 0}), 4.0);
  const TensorRef scalar = contiguous_ref(memory, DType::float64, {});
  ASSERT_TRUE(broadcast_to(scalar, {2, 2}, &wide));
  EXPECT_EQ(read_real(wide, {1, 1}), 1.0);
}

TEST(TensorRef, BroadcastRefusesWhatDoesNotFit) {
  double memory[6] = {};
  TensorRef wide;
  EXPECT_FALSE(broadcast_to(contiguous_ref(memory, DType::float64, {3}), {4, 2}, &wide));
  EXPECT_FALSE(broadcast_to(contiguous_ref(memory, DType::float64, {2, 3}), {3}, &wide));
  EXPECT_FALSE(broadcast_to(contiguous_ref(memory, DType::float64, {3, 2}), {1, 2}, &wide));
  EXPECT_FALSE(wide.defined());  // left alone
}

TEST(TensorRef, ReadsAndWritesEveryType) {
  double f64[2] = {};
  float f32[2] = {};
  Float16 f16[2] = {};
  BFloat16 bf16[2] = {};
  const double third = 1.0 / 3.0;
  for (const TensorRef& t :
       {contiguous_ref(f64, DType::float64, {2}), contiguous_ref(f32, DType::float32, {2}),
        contiguous_ref(f16, DType::float16, {2}), contiguous_ref(bf16, DType::bfloat16, {2})}) {
    write_real(t, {1}, third);
    EXPECT_EQ(read_real(t, {0}), 0.0);
  }
  EXPECT_EQ(f64[1], third);
  EXPECT_EQ(f32[1], static_cast<float>(third));
  EXPECT_EQ(f16[1].bits, 0x3555);
  EXPECT_EQ(bf16[1].bits, 0x3EAB);
  bool flags[2] = {false, true};
  const TensorRef boolean = contiguous_ref(flags, DType::boolean, {2});
  EXPECT_EQ(read_real(boolean, {1}), 1.0);
  EXPECT_EQ(read_real(boolean, {0}), 0.0);
  std::int32_t narrow[2] = {-5, 7};
  std::int64_t wide[2] = {std::int64_t{1} << 40, -1};
  EXPECT_EQ(read_index(contiguous_ref(narrow, DType::int32, {2}), {0}), -5);
  EXPECT_EQ(read_index(contiguous_ref(wide, DType::int64, {2}), {0}), std::int64_t{1} << 40);
}

TEST(TensorRef, RefusesTheWrongKindOfType) {
  std::int32_t labels[1] = {};
  double scores[1] = {};
  const TensorRef index = contiguous_ref(labels, DType::int32, {1});
  const TensorRef real = contiguous_ref(scores, DType::float64, {1});
  EXPECT_TRUE(
      throws<Unsupported>([&] { read_real(index, {0}); }, "dtype int32 is not a real type"));
  EXPECT_TRUE(throws<Unsupported>([&] { write_real(index, {0}, 1.0); }, "int32.*float64, float32"));
  EXPECT_TRUE(
      throws<Unsupported>([&] { read_index(real, {0}); }, "float64 is not an index type.*int64"));
}

TEST(TensorRef, RowsFollowStridesOfAnySign) {
  double memory[6] = {1, 2, 3, 4, 5, 6};
  TensorRef t = contiguous_ref(memory + 5, DType::float64, {2, 3});
  t.strides[0] = -3;
  t.strides[1] = -1;
  std::vector<double> row(3);
  read_row(t, {1}, row);
  EXPECT_EQ(row, (std::vector<double>{3, 2, 1}));
  write_row(t, {0}, std::vector<double>{60, 50, 40});
  EXPECT_EQ(memory[5], 60);
  EXPECT_EQ(memory[3], 40);
  EXPECT_EQ(memory[2], 3);
  fill_real(t, 9.0);
  for (double value : memory) EXPECT_EQ(value, 9.0);
}

TEST(TensorRef, FillTouchesItsElementsOnly) {
  std::vector<double> memory(12, 1.0);
  TensorRef t = contiguous_ref(memory.data() + 1, DType::float64, {2, 2});
  t.strides[0] = 6;
  t.strides[1] = 2;
  fill_real(t, 0.0);
  const std::vector<double> expected{1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1, 1};
  EXPECT_EQ(memory, expected);
}

}  // namespace
}  // namespace transducer
