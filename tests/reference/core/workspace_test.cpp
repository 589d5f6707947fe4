// SPDX-License-Identifier: Apache-2.0
#include "reference/core/workspace.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/messages.hpp"

namespace transducer {
namespace {

using testing::throws;
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

TEST(Workspace, RegionsAreAlignedAndDoNotOverlap) {
  WorkspacePlan plan;
  plan.book("a", "[3] float64", RegionKind::scratch, 3, 8);
  plan.book("kept", "[5] float32", RegionKind::saved, 5, 4);
  plan.book("b", "[65] uint8", RegionKind::scratch, 65, 1);
  plan.book("none", "[0] float64", RegionKind::scratch, 0, 8);
  plan.book("c", "[1] float64", RegionKind::scratch, 1, 8);
  EXPECT_EQ(plan.region("a").offset, 0u);
  EXPECT_EQ(plan.region("b").offset, 64u);
  EXPECT_EQ(plan.region("none").offset, 192u);
  EXPECT_EQ(plan.region("c").offset, 192u);
  EXPECT_EQ(plan.region("b").bytes, 65u);
  EXPECT_EQ(plan.region("kept").offset, 0u);
  EXPECT_EQ(plan.scratch_bytes(), 200u);
  EXPECT_EQ(plan.saved_bytes(), 20u);
  EXPECT_EQ(plan.regions().size(), 5u);
  EXPECT_THROW(plan.region("d"), std::logic_error);
}

TEST(Workspace, NeverMadeCostsNothing) {
  WorkspacePlan plan;
  plan.note_never_made("logits", "[B, T, U+1, K]", 1 << 30);
  EXPECT_EQ(plan.scratch_bytes(), 0u);
  ASSERT_EQ(plan.never_made().size(), 1u);
  EXPECT_EQ(plan.never_made()[0].bytes, std::size_t{1} << 30);
}

TEST(Workspace, ProductsThatOverflowAreRefused) {
  EXPECT_EQ(checked_product(0, kMax), 0);
  EXPECT_EQ(checked_product(1, kMax), kMax);
  EXPECT_EQ(checked_product(std::int64_t{1} << 31, std::int64_t{1} << 31), std::int64_t{1} << 62);
  EXPECT_TRUE(
      throws([] { checked_product(2, kMax / 2 + 1); }, "a size of 2 x 4611686018427387904"));
  EXPECT_TRUE(throws([] { checked_product(-1, 4); }, "a size is negative: -1, expected 0 or more"));
  EXPECT_TRUE(throws([] { checked_product(4, -3); }, "negative: -3"));
}

TEST(Workspace, BookingsThatOverflowAreRefused) {
  WorkspacePlan plan;
  EXPECT_TRUE(throws([&] { plan.book("x", "", RegionKind::scratch, kMax / 4, 8); },
                     "does not fit in 63 bits"));
  plan.book("x", "", RegionKind::scratch, kMax / 16, 8);
  plan.book("apart", "", RegionKind::saved, kMax / 16, 8);  // another total
  EXPECT_TRUE(throws([&] { plan.book("y", "", RegionKind::scratch, kMax / 16 + 64, 8); },
                     "the workspace region y of .* bytes does not fit in 63 bits"));
}

TEST(Workspace, TooSmallOrMisalignedMemoryIsRefusedWithBothNumbers) {
  WorkspacePlan plan;
  plan.book("a", "", RegionKind::scratch, 128, 1);
  plan.book("b", "", RegionKind::saved, 64, 1);
  alignas(64) std::byte scratch[192];
  alignas(64) std::byte saved[128];
  const auto with = [&](std::size_t scratch_bytes, std::size_t saved_bytes, std::size_t shift) {
    return Workspace{.scratch = std::span(scratch).subspan(shift, scratch_bytes),
                     .saved = std::span(saved).first(saved_bytes)};
  };
  EXPECT_NO_THROW(check_workspace(plan, with(128, 64, 0), 0, "loss"));
  EXPECT_NO_THROW(check_workspace(plan, with(192, 128, 0), 128, "loss"));
  EXPECT_TRUE(throws([&] { check_workspace(plan, with(127, 64, 0), 0, "loss"); },
                     "^loss: workspace.scratch has 127 bytes, expected 128"));
  EXPECT_TRUE(throws([&] { check_workspace(plan, with(128, 63, 0), 0, "loss"); },
                     "^loss: workspace.saved has 63 bytes, expected 64"));
  EXPECT_TRUE(throws([&] { check_workspace(plan, with(128, 64, 8), 0, "loss"); },
                     "misaligned, expected addresses that are multiples of 64"));
  EXPECT_TRUE(throws([&] { check_workspace(plan, with(128, 64, 0), 127, "loss"); },
                     "workspace_limit is 127 bytes, expected at least 128"));
}

TEST(Workspace, TakeRegionIsTheBookedMemory) {
  WorkspacePlan plan;
  plan.book("a", "", RegionKind::scratch, 3, 8);
  plan.book("b", "", RegionKind::scratch, 2, 8);
  plan.book("kept", "", RegionKind::saved, 4, 4);
  alignas(64) std::byte scratch[128];
  alignas(64) std::byte saved[64];
  const Workspace workspace{.scratch = scratch, .saved = saved};
  EXPECT_EQ(take_region<double>(plan, workspace, "a").size(), 3u);
  EXPECT_EQ(static_cast<void*>(take_region<double>(plan, workspace, "b").data()), scratch + 64);
  EXPECT_EQ(static_cast<void*>(take_region<float>(plan, workspace, "kept").data()), saved);
  EXPECT_EQ(take_region<float>(plan, workspace, "kept").size(), 4u);
}

}  // namespace
}  // namespace transducer
