// SPDX-License-Identifier: Apache-2.0
//
// Memory of the reference: what lies around it, what it held before, its layout and its types do
// not change a result.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "reference/variants/all.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/fixture.hpp"
#include "tests/support/messages.hpp"
#include "tests/support/noise.hpp"

namespace transducer::testing {
namespace {

/// A request with every option that takes memory.
DenseBatch rich_batch() {
  DenseBatch batch = noise_batch(make_variant(find_variant("target_robust")), 2, 4, 3, 6);
  batch.frame_lengths = {4, 2};
  batch.target_lengths = {3, 1};
  batch.arc_scores = noise(2 * 4 * 4 * batch.A(), 2);
  batch.start_scores = noise(2 * 4, 3);
  batch.final_scores = noise(2 * 5, 4);
  return batch;
}

struct Filled {
  std::vector<double> costs, gradient;
  bool canaries_alive = true;
};

/// Runs in exactly the planned scratch (less `short_by`), filled with `fill`, canaries around it.
Filled run_in(DenseBatch& batch, std::byte fill, std::size_t short_by = 0) {
  constexpr std::byte kCanary{0xA5};
  constexpr std::size_t kMargin = 256;
  Filled out;
  LossResult result;
  result.costs = DenseBatch::make(out.costs, {batch.B});
  result.logits_gradient = DenseBatch::make(out.gradient, {batch.B, batch.T, batch.U + 1, batch.K});
  const LossRequest request = batch.request();
  const auto plan = reference::plan_workspace(shape_of(request, result), {});
  const std::size_t bytes = plan.scratch_bytes() - short_by;
  std::vector<std::byte> memory(bytes + 2 * kMargin + kWorkspaceAlignment, kCanary);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data() + kMargin);
  const std::size_t begin =
      kMargin + (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment;
  for (std::size_t i = begin; i < begin + bytes; ++i) memory[i] = fill;
  reference::loss(request, result, {},
                  {.scratch = std::span(memory).subspan(begin, bytes), .saved = {}});
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const bool inside = begin <= i && i < begin + bytes;
    out.canaries_alive = out.canaries_alive && (inside || memory[i] == kCanary);
  }
  return out;
}

TEST(Memory, ScratchMayHoldAnythingAndIsNotLeft) {
  DenseBatch batch = rich_batch();
  const Filled zeros = run_in(batch, std::byte{0});
  EXPECT_TRUE(zeros.canaries_alive);
  for (const std::byte fill : {std::byte{0xFF}, std::byte{0x7F}}) {
    const Filled filled = run_in(batch, fill);
    EXPECT_TRUE(filled.canaries_alive);
    EXPECT_EQ(bit_difference("costs", filled.costs, zeros.costs), "");
    EXPECT_EQ(bit_difference("gradient", filled.gradient, zeros.gradient), "");
  }
  EXPECT_TRUE(throws([&] { run_in(batch, std::byte{0}, 1); },
                     "^test: workspace.scratch has [0-9]+ bytes, expected [0-9]+ because"));
}

TEST(Memory, PlansGrowWithEverySize) {
  const LossShape base = {.batch = 2,
                          .frames = 5,
                          .labels = 3,
                          .columns = 40,
                          .hidden = 24,
                          .arcs = 3,
                          .groups = 2,
                          .arc_scores = 100};
  const auto bytes = [](const LossShape& shape) {
    return reference::plan_workspace(shape, {}).scratch_bytes();
  };
  for (auto member : {&LossShape::frames, &LossShape::labels, &LossShape::columns,
                      &LossShape::hidden, &LossShape::arc_scores}) {
    LossShape larger = base;
    larger.*member += 64;
    EXPECT_GT(bytes(larger), bytes(base));
  }
  LossShape other = base;
  other.arcs += 4;
  EXPECT_GT(bytes(other), bytes(base));
  other = base;
  other.groups += 1;
  EXPECT_GT(bytes(other), bytes(base));
  other = base;
  other.batch += 100;  // one utterance at a time
  EXPECT_EQ(bytes(other), bytes(base));
  other = base;
  other.gradient = false;
  EXPECT_LT(bytes(other), bytes(base));
  other = base;
  other.hidden = 0;
  EXPECT_LT(bytes(other), bytes(base));
  other.frames = std::int64_t{1} << 40;
  other.labels = std::int64_t{1} << 40;
  EXPECT_TRUE(throws([&] { bytes(other); }, "does not fit in 63 bits"));
  other = base;
  other.columns = 0;
  EXPECT_TRUE(throws([&] { bytes(other); }, "^plan_workspace: .* K at least 1.* K = 0"));
}

/// Runs with the logits at other addresses; their gradient keeps the layout of the logits.
std::vector<double> gradient_with_layout(DenseBatch& batch, const TensorRef& logits,
                                         const TensorRef& gradient) {
  LossRequest request = batch.request();
  request.source = DenseSource{logits};
  LossResult result;
  result.logits_gradient = gradient;
  run_reference(request, result);
  std::vector<double> flat;
  for (std::int64_t b = 0; b < batch.B; ++b) {
    for (std::int64_t t = 0; t < batch.T; ++t) {
      for (std::int64_t u = 0; u <= batch.U; ++u) {
        for (std::int64_t k = 0; k < batch.K; ++k) {
          flat.push_back(read_real(gradient, {b, t, u, k}));
        }
      }
    }
  }
  return flat;
}

TEST(Memory, StridesDoNotChangeAnything) {
  DenseBatch batch = rich_batch();
  const std::vector<double> expected = batch.run().logits_gradient;
  const std::int64_t strides[3][4] = {{1, 2, 8, 32}, {-96, 24, -6, 1}, {288, 72, 18, 3}};
  const std::int64_t base[3] = {0, 96 + 18, 0};
  for (int layout = 0; layout < 3; ++layout) {
    std::vector<double> from(1000, kNaN);
    std::vector<double> to(1000, 0.5);
    TensorRef logits = contiguous_ref(from.data() + base[layout], DType::float64, {2, 4, 4, 6});
    std::copy(strides[layout], strides[layout] + 4, logits.strides);
    TensorRef gradient = logits;
    gradient.data = to.data() + base[layout];
    for (std::int64_t i = 0; i < 192; ++i) {
      write_real(logits, {i / 96, i / 24 % 4, i / 6 % 4, i % 6},
                 batch.logits[static_cast<std::size_t>(i)]);
    }
    EXPECT_EQ(bit_difference("gradient", gradient_with_layout(batch, logits, gradient), expected),
              "");
    EXPECT_EQ(std::count(to.begin(), to.end(), 0.5), 1000 - 192);  // nothing else is written
  }
}

TEST(Memory, InPlaceGradientEqualsOutOfPlace) {
  DenseBatch batch = rich_batch();
  batch.clamp = 0.1;
  const std::vector<double> expected = batch.run().logits_gradient;
  std::vector<double> memory = batch.logits;
  const TensorRef logits = DenseBatch::real(memory, {2, 4, 4, 6});
  EXPECT_EQ(bit_difference("gradient", gradient_with_layout(batch, logits, logits), expected), "");
}

TEST(Memory, BroadcastArcScoresEqualMaterialisedOnes) {
  DenseBatch batch = rich_batch();
  const std::vector<double> few = noise(4 * batch.A(), 9);  // [4, 1, A]: one per frame and arc
  for (std::size_t i = 0; i < batch.arc_scores.size(); ++i) {
    const std::size_t arcs = static_cast<std::size_t>(batch.A());
    batch.arc_scores[i] = few[i / (4 * arcs) % 4 * arcs + i % arcs];
  }
  const Outcome wide = batch.run();
  LossRequest request = batch.request();
  std::vector<double> narrow = few;
  std::vector<double> gradient(few.size());
  request.arc_scores = DenseBatch::real(narrow, {4, 1, batch.A()});
  LossResult result;
  std::vector<double> costs;
  result.costs = DenseBatch::make(costs, {2});
  result.arc_scores_gradient = DenseBatch::real(gradient, {4, 1, batch.A()});
  run_reference(request, result);
  EXPECT_EQ(bit_difference("costs", costs, wide.costs), "");
  std::vector<double> summed(few.size(), 0.0);
  for (std::size_t i = 0; i < wide.arc_scores_gradient.size(); ++i) {
    const std::size_t arcs = static_cast<std::size_t>(batch.A());
    summed[i / (4 * arcs) % 4 * arcs + i % arcs] += wide.arc_scores_gradient[i];
  }
  EXPECT_EQ(difference("summed gradient", gradient, summed, 1e-14), "");
}

template <class Scalar>
void expect_rounded_once(DType dtype) {
  DenseBatch batch = rich_batch();
  std::vector<Scalar> narrow;
  for (double& value : batch.logits) {
    narrow.push_back(static_cast<Scalar>(value));
    value = static_cast<double>(narrow.back());
  }
  const Outcome wide = batch.run();
  LossRequest request = batch.request();
  request.source = DenseSource{contiguous_ref(narrow.data(), dtype, {2, 4, 4, 6})};
  std::vector<Scalar> gradient(narrow.size());
  std::vector<double> costs;
  LossResult result;
  result.costs = DenseBatch::make(costs, {2});
  result.logits_gradient = contiguous_ref(gradient.data(), dtype, {2, 4, 4, 6});
  run_reference(request, result);
  EXPECT_EQ(bit_difference("costs", costs, wide.costs), "");
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const auto rounded = static_cast<Scalar>(wide.logits_gradient[i]);
    ASSERT_EQ(static_cast<double>(gradient[i]), static_cast<double>(rounded)) << i;
  }
}

TEST(Memory, NarrowTypesAreWidenedAndResultsRoundedOnce) {
  expect_rounded_once<float>(DType::float32);
  expect_rounded_once<Float16>(DType::float16);
  expect_rounded_once<BFloat16>(DType::bfloat16);
}

TEST(Memory, LabelsAndLengthsMayBeNarrowAndStrided) {
  DenseBatch batch = rich_batch();
  const Outcome wide = batch.run();
  LossRequest request = batch.request();
  std::vector<std::int32_t> targets(24, -1);
  std::vector<std::int32_t> lengths{2, 77, 4, 77};  // read backwards: 4, 2
  TensorRef narrow = contiguous_ref(targets.data() + 23, DType::int32, {2, 3});
  narrow.strides[0] = -12;
  narrow.strides[1] = -4;
  for (std::int64_t i = 0; i < 6; ++i) {
    targets[static_cast<std::size_t>(23 + i / 3 * narrow.strides[0] + i % 3 * narrow.strides[1])] =
        static_cast<std::int32_t>(batch.targets[static_cast<std::size_t>(i)]);
  }
  request.targets = narrow;
  request.frame_lengths = contiguous_ref(lengths.data() + 2, DType::int32, {2});
  request.frame_lengths.strides[0] = -2;
  std::vector<double> costs;
  LossResult result;
  result.costs = DenseBatch::make(costs, {2});
  run_reference(request, result);
  EXPECT_EQ(bit_difference("costs", costs, wide.costs), "");
}

}  // namespace
}  // namespace transducer::testing
