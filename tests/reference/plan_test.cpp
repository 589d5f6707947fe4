// SPDX-License-Identifier: Apache-2.0
//
// The memory plan of the reference for joint inputs: exact bytes suffice, nothing outside them is
// touched, what they hold beforehand does not matter; and sizes that do not fit are refused.
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reference/variants/all.hpp"
#include "tests/support/expect.hpp"
#include "tests/support/messages.hpp"
#include "tests/support/noise.hpp"

namespace transducer::testing {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

/// Exactly `bytes` of scratch between two canaries, filled with `fill`.
class GuardedScratch {
 public:
  GuardedScratch(std::size_t bytes, std::byte fill)
      : memory_(bytes + 3 * kGuard, kCanary), bytes_(bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data()) + kGuard;
    first_ = kGuard + (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment;
    std::memset(memory_.data() + first_, static_cast<int>(fill), bytes);
  }

  Workspace workspace() {
    return {.scratch = std::span(memory_).subspan(first_, bytes_), .saved = {}};
  }

  bool canaries_alive() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const bool inside = i >= first_ && i < first_ + bytes_;
      if (!inside && memory_[i] != kCanary) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 256;
  static constexpr std::byte kCanary{0xa5};
  std::vector<std::byte> memory_;
  std::size_t bytes_;
  std::size_t first_ = 0;
};

/// Small joint inputs with every gradient; results land in `outputs`, one after another.
struct JointCase {
  std::int64_t B = 2, T = 3, U = 2, K = 5, H = 4;
  std::vector<double> encoder = noise(B * T * H, 1);
  std::vector<double> predictor = noise(B * (U + 1) * H, 2);
  std::vector<double> weight = noise(K * H, 3);
  std::vector<double> bias = noise(K, 4);
  std::vector<double> arc_scores = noise(2, 5);
  std::vector<std::int64_t> targets = {1, 0, 2, 3}, frames = {3, 2}, labels = {2, 1};
  std::vector<double> outputs[6];

  LossRequest request() {
    LossRequest r;
    JointSource source;
    source.encoder = DenseBatch::real(encoder, {B, T, H});
    source.predictor = DenseBatch::real(predictor, {B, U + 1, H});
    source.weight = DenseBatch::real(weight, {K, H});
    source.bias = DenseBatch::real(bias, {K});
    source.dropout = 0.25;
    r.source = source;
    r.targets = DenseBatch::index(targets, {B, U});
    r.frame_lengths = DenseBatch::index(frames, {B});
    r.target_lengths = DenseBatch::index(labels, {B});
    r.arc_scores = DenseBatch::real(arc_scores, {2});
    r.variant = rnnt(position(-1));
    return r;
  }

  LossResult result() {
    LossResult r;
    r.costs = DenseBatch::make(outputs[0], {B});
    r.encoder_gradient = DenseBatch::make(outputs[1], {B, T, H});
    r.predictor_gradient = DenseBatch::make(outputs[2], {B, U + 1, H});
    r.weight_gradient = DenseBatch::make(outputs[3], {K, H});
    r.bias_gradient = DenseBatch::make(outputs[4], {K});
    r.arc_scores_gradient = DenseBatch::make(outputs[5], {2});
    return r;
  }
};

TEST(Plan, WhatScratchHoldsBeforehandDoesNotMatterAndNothingOutsideIsTouched) {
  std::vector<double> expected[6];
  for (std::byte fill : {std::byte{0}, std::byte{0xff}, std::byte{0x3f}}) {
    JointCase joint;
    const LossRequest request = joint.request();
    const LossResult result = joint.result();
    const WorkspacePlan plan = reference::plan_workspace(shape_of(request, result), {});
    GuardedScratch scratch(plan.scratch_bytes(), fill);
    reference::loss(request, result, {}, scratch.workspace());
    EXPECT_TRUE(scratch.canaries_alive());
    for (std::size_t i = 0; i < 6; ++i) {
      if (fill == std::byte{0}) expected[i] = joint.outputs[i];
      EXPECT_TRUE(same_bits(joint.outputs[i], expected[i])) << "output " << i;
    }
  }
}

TEST(Plan, ALimitBelowTheSmallestScratchIsRefused) {
  JointCase joint;
  const LossRequest request = joint.request();
  const LossResult result = joint.result();
  const auto bytes = static_cast<std::int64_t>(
      reference::plan_workspace(shape_of(request, result), {}).scratch_bytes());
  EXPECT_NO_THROW(run_reference(request, result, {.workspace_limit = bytes}));
  EXPECT_TRUE(throws<InvalidArgument>(
      [&] { run_reference(request, result, {.workspace_limit = bytes - 1}); },
      concat("loss: workspace_limit is ", bytes - 1, " bytes, expected at least ", bytes,
             " because .*")));
}

TEST(Plan, NamesWhatIsNeverMade) {
  const LossShape shape = {.batch = 2,
                           .frames = 3,
                           .labels = 4,
                           .columns = 10,
                           .hidden = 8,
                           .arcs = 2,
                           .groups = 1,
                           .dtype = DType::bfloat16};
  const WorkspacePlan plan = reference::plan_workspace(shape, {});
  ASSERT_EQ(plan.never_made().size(), 1u);
  EXPECT_EQ(plan.never_made()[0].name, "logits");
  EXPECT_EQ(plan.never_made()[0].bytes, 2u * 2 * 3 * 5 * 10);
  EXPECT_EQ(plan.saved_bytes(), 0u);
  LossShape dense = shape;
  dense.hidden = 0;
  EXPECT_TRUE(reference::plan_workspace(dense, {}).never_made().empty());
}

TEST(Plan, SizesThatDoNotFitAreRefused) {
  const LossShape base = {.batch = 1, .frames = 2, .labels = 2, .columns = 2, .arcs = 2};
  for (std::int64_t LossShape::* size :
       {&LossShape::frames, &LossShape::labels, &LossShape::columns, &LossShape::hidden}) {
    for (std::int64_t value : {kHuge, kHuge - 1, kHuge / 2, kHuge / 8}) {
      LossShape shape = base;
      shape.*size = value;
      EXPECT_THROW(reference::plan_workspace(shape, {}), InvalidArgument) << value;
    }
    LossShape negative = base;
    negative.*size = -1;
    EXPECT_TRUE(throws<InvalidArgument>(
        [&] { reference::plan_workspace(negative, {}); },
        "plan_workspace: B, T, U and H must be 0 or more and K at least 1, got .*-1.*"));
  }
  LossShape joint = base;
  joint.hidden = 1;
  joint.batch = kHuge / 4;
  EXPECT_THROW(reference::plan_workspace(joint, {}), InvalidArgument)
      << "the bytes of the logits that are never made do not fit";
}

}  // namespace
}  // namespace transducer::testing
