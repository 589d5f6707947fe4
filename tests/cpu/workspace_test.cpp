// SPDX-License-Identifier: Apache-2.0
//
// The CPU layer's workspace: exactly the planned bytes suffice, nothing around them is touched,
// what scratch holds before a call changes no bit, and a larger shape never needs less.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cpu/loss.hpp"
#include "reference/variants/all.hpp"
#include "tests/support/fixture.hpp"
#include "tests/support/messages.hpp"
#include "tests/support/typed_array.hpp"

namespace transducer::testing {
namespace {

constexpr std::size_t kCanary = 256;

/// A call with small inputs, dense or joint, and all outputs of its kind.
class SmallCall {
 public:
  explicit SmallCall(bool joint, DType dtype = DType::float32)
      : logits_(dtype, {2, 5, 4, 9}),
        first_(dtype, {2, 5, 6}),
        second_(dtype, {2, 4, 6}),
        weight_(dtype, {9, 6}),
        bias_(dtype, {9}),
        first_gradient_(dtype, {2, 5, 6}),
        second_gradient_(dtype, {2, 4, 6}),
        weight_gradient_(dtype, {9, 6}),
        bias_gradient_(dtype, {9}),
        logits_gradient_(dtype, {2, 5, 4, 9}) {
    int next = 0;
    for (TypedArray* array : {&logits_, &first_, &second_, &weight_, &bias_}) {
      const TensorRef ref = array->ref();
      std::vector<std::int64_t> extents(ref.extents, ref.extents + ref.rank);
      std::vector<double> values(static_cast<std::size_t>(ref.size()));
      for (double& value : values) value = 0.25 * ((next = (next * 37 + 11) % 101) % 17 - 8);
      *array = TypedArray(dtype, extents, values);
    }
    request.caller = "test";
    if (joint) {
      request.source = JointSource{.encoder = first_.ref(),
                                   .predictor = second_.ref(),
                                   .weight = weight_.ref(),
                                   .bias = bias_.ref()};
      result.encoder_gradient = first_gradient_.ref();
      result.predictor_gradient = second_gradient_.ref();
      result.weight_gradient = weight_gradient_.ref();
      result.bias_gradient = bias_gradient_.ref();
    } else {
      request.source = DenseSource{.logits = logits_.ref()};
      result.logits_gradient = logits_gradient_.ref();
    }
    request.targets = DenseBatch::index(targets_, {2, 3});
    request.frame_lengths = DenseBatch::index(frames_, {2});
    request.target_lengths = DenseBatch::index(labels_, {2});
    request.variant = make_variant(named_variants()[0], {});
    result.costs = DenseBatch::make(costs_, {2});
  }
  SmallCall(const SmallCall&) = delete;

  WorkspacePlan plan() const { return cpu::plan_workspace(shape_of(request, result), options); }

  /// Every output after a run in `memory`.
  std::vector<double> run(std::span<std::byte> memory) {
    cpu::loss(request, result, options, {.scratch = memory, .saved = {}});
    return outputs();
  }

  std::vector<double> outputs() {
    std::vector<double> all = costs_;
    for (TypedArray* array : {&logits_gradient_, &first_gradient_, &second_gradient_,
                              &weight_gradient_, &bias_gradient_}) {
      const std::vector<double> values = array->values();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  /// The same outputs from forward and backward, the backward run twice.
  std::vector<double> run_apart(std::span<std::byte> scratch, std::span<std::byte> saved) {
    const LossResult gradients = result;
    result = {.costs = gradients.costs};
    cpu::forward(request, result, options, {.scratch = scratch, .saved = saved});
    result = gradients;
    result.costs = {};
    for (int pass = 0; pass < 2; ++pass) {
      std::fill(scratch.begin(), scratch.end(), std::byte{0xff});
      cpu::backward(request, result, options, {.scratch = scratch, .saved = saved});
    }
    result = gradients;
    return outputs();
  }

  LossRequest request;
  LossResult result;
  Options options{.threads = 3};

 private:
  TypedArray logits_, first_, second_, weight_, bias_;
  TypedArray first_gradient_, second_gradient_, weight_gradient_, bias_gradient_, logits_gradient_;
  std::vector<std::int64_t> targets_ = {1, 2, 3, 4, 5, 6}, frames_ = {5, 3}, labels_ = {3, 1};
  std::vector<double> costs_;
};

/// `bytes` aligned bytes of `value` between canaries.
class GuardedMemory {
 public:
  GuardedMemory(std::size_t bytes, std::byte value)
      : memory_(bytes + 2 * kCanary + kWorkspaceAlignment, std::byte{0xc5}), bytes_(bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data()) + kCanary;
    first_ = kCanary + (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment;
    std::fill_n(memory_.begin() + static_cast<std::ptrdiff_t>(first_), bytes, value);
  }
  std::span<std::byte> span() { return std::span(memory_).subspan(first_, bytes_); }
  bool canaries_are_intact() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if ((i < first_ || i >= first_ + bytes_) && memory_[i] != std::byte{0xc5}) return false;
    }
    return true;
  }

 private:
  std::vector<std::byte> memory_;
  std::size_t bytes_, first_ = 0;
};

class CpuWorkspace : public ::testing::TestWithParam<std::tuple<bool, DType>> {};

TEST_P(CpuWorkspace, ExactBytesSufficeAndOldContentsDoNotMatter) {
  const auto [joint, dtype] = GetParam();
  SmallCall call(joint, dtype);
  const std::size_t bytes = call.plan().scratch_bytes();
  std::vector<double> want;
  for (std::byte value : {std::byte{0x00}, std::byte{0xff}, std::byte{0x7f}}) {
    GuardedMemory memory(bytes, value);
    const std::vector<double> got = call.run(memory.span());
    EXPECT_TRUE(memory.canaries_are_intact());
    if (want.empty()) want = got;
    EXPECT_EQ(got, want) << "scratch filled with " << int(value);
  }
}

TEST_P(CpuWorkspace, ForwardAndBackwardApartGiveTheSameBits) {
  const auto [joint, dtype] = GetParam();
  SmallCall call(joint, dtype);
  const std::size_t bytes = call.plan().scratch_bytes();
  GuardedMemory memory(bytes, std::byte{0xff});
  const std::vector<double> want = call.run(memory.span());
  LossShape shape = shape_of(call.request, call.result);
  shape.apart = true;
  const WorkspacePlan plan = cpu::plan_workspace(shape, call.options);
  EXPECT_EQ(plan.saved_bytes(), std::size_t{2 * 5 * 4 * 24});  // 24 bytes a node
  GuardedMemory saved(plan.saved_bytes(), std::byte{0xff});
  EXPECT_EQ(call.run_apart(memory.span(), saved.span()), want);
  EXPECT_TRUE(memory.canaries_are_intact());
  EXPECT_TRUE(saved.canaries_are_intact());
  EXPECT_TRUE(throws([&] { call.run_apart(memory.span(), saved.span().first(64)); }, "64.*960"));
}

TEST(CpuApart, NothingIsScaledInPlaceAndGradientsWaitForTheBackward) {
  SmallCall call(false, DType::float64);
  GuardedMemory memory(call.plan().scratch_bytes(), std::byte{0xff});
  GuardedMemory saved(std::size_t{2 * 5 * 4 * 24}, std::byte{0xff});
  const std::vector<double> once = call.run_apart(memory.span(), saved.span());
  double upstream[2] = {-2.0, 0.5};
  call.request.reduction = Reduction::none;
  const std::vector<double> unscaled = call.run_apart(memory.span(), saved.span());
  call.request.upstream = {
      .data = upstream, .dtype = DType::float64, .rank = 1, .extents = {2}, .strides = {1}};
  const std::vector<double> scaled = call.run_apart(memory.span(), saved.span());
  const std::size_t costs = 2, per_utterance = 5 * 4 * 9;
  for (std::size_t i = 0; i < per_utterance; ++i) {
    EXPECT_DOUBLE_EQ(scaled[costs + i], -2.0 * unscaled[costs + i]);
    EXPECT_DOUBLE_EQ(scaled[costs + per_utterance + i], 0.5 * unscaled[costs + per_utterance + i]);
    EXPECT_DOUBLE_EQ(once[costs + i],
                     0.5 * unscaled[costs + i]);  // the default is the mean over two
  }
  EXPECT_TRUE(throws(
      [&] {
        cpu::forward(call.request, call.result, call.options,
                     {.scratch = memory.span(), .saved = saved.span()});
      },
      "gradient.*forward"));
}

TEST_P(CpuWorkspace, OneByteLessIsRefused) {
  const auto [joint, dtype] = GetParam();
  SmallCall call(joint, dtype);
  const std::size_t bytes = call.plan().scratch_bytes();
  GuardedMemory memory(bytes, std::byte{0});
  const std::string both = std::to_string(bytes - 1) + ".*" + std::to_string(bytes) + "|" +
                           std::to_string(bytes) + ".*" + std::to_string(bytes - 1);
  EXPECT_TRUE(throws([&] { call.run(memory.span().first(bytes - 1)); }, both));
}

INSTANTIATE_TEST_SUITE_P(EachSource, CpuWorkspace,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(DType::float64, DType::float32,
                                                              DType::bfloat16)));

TEST(CpuWorkspacePlan, MisalignedMemoryIsRefused) {
  SmallCall call(false);
  GuardedMemory memory(call.plan().scratch_bytes() + 8, std::byte{0});
  EXPECT_TRUE(throws([&] { call.run(memory.span().subspan(8)); }, "align"));
}

TEST(CpuWorkspacePlan, ALimitBelowThePlanIsRefused) {
  SmallCall call(false);
  const std::size_t bytes = call.plan().scratch_bytes();
  GuardedMemory memory(bytes, std::byte{0});
  call.options.workspace_limit = static_cast<std::int64_t>(bytes);
  call.run(memory.span());
  call.options.workspace_limit = static_cast<std::int64_t>(bytes) - 1;
  EXPECT_TRUE(throws([&] { call.run(memory.span()); }, std::to_string(bytes)));
}

TEST(CpuWorkspacePlan, BytesNeverShrinkWithTheShape) {
  const auto bytes = [](const LossShape& shape, int threads) {
    return cpu::plan_workspace(shape, {.threads = threads}).scratch_bytes();
  };
  for (std::int64_t hidden : {0, 64}) {
    LossShape base{.batch = 2,
                   .frames = 50,
                   .labels = 20,
                   .columns = 100,
                   .hidden = hidden,
                   .arcs = 3,
                   .groups = 2,
                   .dtype = DType::float32};
    const auto grow = [&](const char* name, const std::function<void(LossShape&, int)>& set) {
      std::size_t before = 0;
      for (int size = 0; size < 12; ++size) {
        LossShape shape = base;
        set(shape, 1 << size);
        const std::size_t now = bytes(shape, 2);
        EXPECT_GE(now, before) << name << " = " << (1 << size) << ", H = " << hidden;
        before = now;
      }
    };
    grow("B", [](LossShape& s, int n) { s.batch = n; });
    grow("T", [](LossShape& s, int n) { s.frames = n; });
    grow("U", [](LossShape& s, int n) { s.labels = n; });
    grow("K", [](LossShape& s, int n) { s.columns = n; });
    grow("A", [](LossShape& s, int n) { s.arcs = std::min(n, 32); });
    grow("G", [](LossShape& s, int n) { s.groups = std::min(n, 4); });
    if (hidden > 0) grow("H", [](LossShape& s, int n) { s.hidden = n; });
    EXPECT_GE(bytes(base, 8), bytes(base, 1));
    LossShape costs_only = base;
    costs_only.gradient = false;
    EXPECT_LE(bytes(costs_only, 2), bytes(base, 2));
  }
}

TEST(CpuWorkspacePlan, RefusesShapesThatCannotBe) {
  EXPECT_TRUE(throws([] { cpu::plan_workspace({.batch = -1, .columns = 1}, {}); }, "B = -1"));
  EXPECT_TRUE(throws(
      [] {
        const std::int64_t huge = std::int64_t{1} << 40;
        cpu::plan_workspace({.batch = huge, .frames = huge, .labels = huge, .columns = huge}, {});
      },
      "."));
}

}  // namespace
}  // namespace transducer::testing
