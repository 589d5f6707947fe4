// SPDX-License-Identifier: Apache-2.0
//
// The joint source of the CUDA layer against the reference, at sizes around every tile: 128 rows, 256 columns,
// steps of 32 units, ranges of 1024 columns; float64 shows that the structure is right, the narrower types that
// the tensor cores' products are.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "reference/variants/all.hpp"
#include "tests/support/cuda_outcome.cuh"
#include "tests/support/joint_batch.hpp"

namespace transducer::testing {
namespace {

constexpr double kExact = 1e-11;  // float64
constexpr double kSingle = 2e-5;  // float32 with Precision::highest, as the CPU layer

VariantTable named(const std::string& name) {
  for (const NamedVariant& variant : named_variants()) {
    if (variant.name == name) return make_variant(variant, {});
  }
  throw std::logic_error("no variant " + name);
}

JointOutcome run_on_cuda(JointBatch& batch, const Options& options = {},
                         CudaPasses passes = CudaPasses::together) {
  return batch.run_with(false, [&](const LossRequest& request, const LossResult& result) {
    run_cuda(request, result, options, passes);
  });
}

void store_as(JointBatch& batch, DType dtype) {
  batch.encoder_dtype = batch.predictor_dtype = batch.weight_dtype = batch.bias_dtype = dtype;
}

void expect_close(const JointOutcome& got, const JointOutcome& want, double tolerance) {
  EXPECT_LE(relative_error(got.costs, want.costs), tolerance) << "costs";
  EXPECT_LE(relative_error({got.total}, {want.total}), tolerance) << "total";
  EXPECT_LE(relative_error(got.encoder, want.encoder), tolerance) << "encoder";
  EXPECT_LE(relative_error(got.predictor, want.predictor), tolerance) << "predictor";
  EXPECT_LE(relative_error(got.weight, want.weight), tolerance) << "weight";
  EXPECT_LE(relative_error(got.bias, want.bias), tolerance) << "bias";
}

void expect_reference(JointBatch& batch, double tolerance) {
  expect_close(run_on_cuda(batch), batch.run_exactly(), tolerance);
}

/// Norm of the difference over the norm of `want`.
double norm_error(const std::vector<double>& got, const std::vector<double>& want) {
  double difference = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  if (got.size() != want.size()) return kInf;
  return size == 0.0 ? std::sqrt(difference) : std::sqrt(difference / size);
}

/// 16-bit types. h, G and the results are rounded to `epsilon` (half a unit in the last place, relative): z
/// is off by about epsilon |z| / sqrt(3) from the rounding of h, a row of G by as much, and each product adds
/// one more rounding. Root mean squares, with room of 1.5.
void expect_reference_in(JointBatch batch, DType dtype) {
  SCOPED_TRACE(dtype_name(dtype));
  store_as(batch, dtype);
  const JointOutcome want = batch.run_exactly();
  const JointOutcome got = run_on_cuda(batch);
  const double epsilon = dtype == DType::bfloat16 ? std::ldexp(1.0, -8) : std::ldexp(1.0, -11);
  EXPECT_LE(relative_error(got.costs, want.costs), epsilon) << "costs";
  EXPECT_LE(norm_error(got.encoder, want.encoder), 3.0 * epsilon) << "encoder";
  EXPECT_LE(norm_error(got.predictor, want.predictor), 3.0 * epsilon) << "predictor";
  EXPECT_LE(norm_error(got.weight, want.weight), 3.0 * epsilon) << "weight";
  EXPECT_LE(norm_error(got.bias, want.bias), 3.0 * epsilon) << "bias";
}

void expect_reference_in_every_type(JointBatch batch) {
  {
    SCOPED_TRACE("float64");
    expect_reference(batch, kExact);
  }
  {
    SCOPED_TRACE("float32");
    store_as(batch, DType::float32);
    expect_reference(batch, kSingle);
  }
  expect_reference_in(batch, DType::bfloat16);
  expect_reference_in(batch, DType::float16);
}

class EachVariantJoint : public ::testing::TestWithParam<std::size_t> {};

TEST_P(EachVariantJoint, EqualsReference) {
  for (std::int64_t columns : {13, 300}) {
    JointBatch batch{.B = 3, .T = 6, .U = 4, .H = 11};
    std::map<std::string, ParameterValue> arguments = {
        {"fastemit", 0.25}, {"sigma", 0.125}, {"delay_penalty", 0.0625}};
    batch.variant = make_variant(named_variants()[GetParam()], arguments);
    batch.K = batch.variant.heads + columns;
    batch.fill(1);
    expect_reference_in_every_type(batch);
  }
}

INSTANTIATE_TEST_SUITE_P(CudaJoint, EachVariantJoint,
                         ::testing::Range(std::size_t{0}, named_variants().size()),
                         [](const auto& info) { return named_variants()[info.param].name; });

class EachActivation : public ::testing::TestWithParam<int> {};

TEST_P(EachActivation, EqualsReference) {
  JointBatch batch{.B = 2, .T = 5, .U = 3, .H = 21, .K = 9};
  batch.variant = named("rnnt");
  batch.activation = static_cast<Activation>(GetParam());
  batch.fill(2);
  expect_reference_in_every_type(batch);
}

INSTANTIATE_TEST_SUITE_P(CudaJoint, EachActivation, ::testing::Range(0, 7));

TEST(CudaJoint, ColumnsAroundATile) {
  for (std::int64_t columns : {2, 15, 16, 17, 129, 255, 256, 257, 1023, 1024, 1025, 2049, 8193}) {
    SCOPED_TRACE(columns);
    JointBatch batch{.B = 1, .T = 3, .U = 2, .H = 7, .K = columns};
    batch.variant = named("rnnt");
    batch.fill(3);
    if (columns > 2) batch.targets[0] = columns - 2;
    expect_reference_in_every_type(batch);
  }
}

TEST(CudaJoint, TwoSoftmaxesAndSumsAcrossTiles) {
  for (const char* name : {"tdt", "bypass", "hat", "target_robust"}) {
    for (std::int64_t columns : {255, 1024, 1026, 2049}) {
      SCOPED_TRACE(std::string(name) + " " + std::to_string(columns));
      JointBatch batch{.B = 1, .T = 4, .U = 2, .H = 5, .K = columns};
      batch.variant = named(name);
      batch.fill(4);
      expect_reference_in_every_type(batch);
    }
  }
}

TEST(CudaJoint, RowsAroundATile) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> sizes = {
      {127, 0}, {64, 1}, {43, 2}, {341, 2}, {205, 4}, {1025, 0}, {3, 33}, {5, 64}, {2, 300}};
  for (const auto& [frames, labels] : sizes) {
    SCOPED_TRACE(frames * (labels + 1));
    JointBatch batch{.B = 2, .T = frames, .U = labels, .H = 5, .K = 6};
    batch.variant = named("monotonic");
    batch.fill(5);
    expect_reference_in_every_type(batch);
  }
}

TEST(CudaJoint, WidthsAroundAStep) {
  for (std::int64_t hidden : {1, 7, 8, 9, 31, 32, 33, 63, 64, 255, 256, 257, 513, 640, 704, 1024}) {
    SCOPED_TRACE(hidden);
    JointBatch batch{.B = 2, .T = 12, .U = 5, .H = hidden, .K = 7};
    batch.variant = named("monotonic");
    batch.fill(6);
    batch.dropout = 0.25;
    batch.seed = 0x1234567890abcdefull;
    expect_reference_in_every_type(batch);
  }
}

TEST(CudaJoint, DropoutMaskAndUtteranceIds) {
  JointBatch batch{.B = 3, .T = 5, .U = 3, .H = 19, .K = 8};
  batch.variant = named("tdt");
  batch.K += batch.variant.heads;
  batch.fill(7);
  batch.dropout = 0.5;
  batch.seed = 99;
  const JointOutcome plain = run_on_cuda(batch);
  expect_reference_in_every_type(batch);
  batch.utterance_ids = {41, 0, 7};
  expect_reference_in_every_type(batch);
  const JointOutcome other = run_on_cuda(batch);
  EXPECT_NE(plain.costs[0], other.costs[0]) << "utterance_ids are not read";
  batch.predictor_mask.assign(12, true);
  batch.predictor_mask[1] = batch.predictor_mask[4] = batch.predictor_mask[5] = false;
  expect_reference_in_every_type(batch);
  EXPECT_NE(run_on_cuda(batch).costs[0], other.costs[0]) << "predictor_mask is not read";
}

TEST(CudaJoint, NoBias) {
  JointBatch batch{.B = 2, .T = 4, .U = 2, .H = 6, .K = 5};
  batch.variant = named("rnnt");
  batch.fill(8);
  batch.bias.clear();
  expect_reference_in_every_type(batch);
}

TEST(CudaJoint, ReductionsScaleEveryGradient) {
  JointBatch batch{.B = 3, .T = 5, .U = 2, .H = 6, .K = 5};
  batch.variant = named("rnnt");
  batch.fill(9);
  for (int r = 0; r <= static_cast<int>(Reduction::mean_frame); ++r) {
    batch.reduction = static_cast<Reduction>(r);
    expect_reference_in_every_type(batch);
  }
}

TEST(CudaJoint, StridedInputsAndOutputs) {
  for (Layout layout : {Layout::shifted, Layout::spread, Layout::reversed}) {
    JointBatch batch{.B = 2, .T = 4, .U = 2, .H = 16, .K = 7};
    batch.variant = named("rnnt");
    batch.layout = layout;
    batch.fill(10);
    expect_reference_in_every_type(batch);
  }
}

TEST(CudaJoint, TypesMayDiffer) {
  const DType types[] = {DType::float64, DType::float32, DType::bfloat16, DType::float16};
  JointBatch batch{.B = 2, .T = 4, .U = 2, .H = 9, .K = 7};
  batch.variant = named("rnnt");
  batch.fill(11);
  for (int which = 0; which < 64; which += 3) {
    SCOPED_TRACE(which);
    batch.encoder_dtype = types[which & 3];
    batch.predictor_dtype = types[which >> 2 & 3];
    batch.weight_dtype = types[which >> 4 & 3];
    batch.bias_dtype = DType::float32;
    const JointOutcome want = batch.run_exactly();
    const JointOutcome got = run_on_cuda(batch);
    EXPECT_LE(relative_error(got.costs, want.costs), std::ldexp(1.0, -8));
    EXPECT_LE(norm_error(got.bias, want.bias), std::ldexp(3.0, -8));
    EXPECT_LE(norm_error(got.weight, want.weight), std::ldexp(3.0, -8));
    EXPECT_LE(norm_error(got.encoder, want.encoder), std::ldexp(3.0, -8));
    EXPECT_LE(norm_error(got.predictor, want.predictor), std::ldexp(3.0, -8));
  }
}

/// More rows than a chunk holds, chunks that end inside an utterance, several ranges of columns.
TEST(CudaJoint, LittleScratchGivesTheSameInputGradients) {
  JointBatch batch{.B = 3, .T = 90, .U = 20, .H = 40, .K = 1100};
  batch.variant = named("rnnt");
  batch.fill(12);
  batch.frame_lengths = {90, 61, 7};
  batch.target_lengths = {20, 11, 20};
  for (DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    SCOPED_TRACE(dtype_name(dtype));
    store_as(batch, dtype);
    const JointOutcome large = run_on_cuda(batch);
    const std::int64_t limit = dtype == DType::float64 ? 12'000'000 : 4'500'000;
    const JointOutcome small = run_on_cuda(batch, {.workspace_limit = limit});
    EXPECT_EQ(small.costs, large.costs);
    EXPECT_EQ(small.encoder, large.encoder);
    EXPECT_EQ(small.predictor, large.predictor);
    EXPECT_LE(norm_error(small.weight, large.weight), std::ldexp(1.0, -8));
    EXPECT_LE(norm_error(small.bias, large.bias), std::ldexp(1.0, -8));
    const JointOutcome apart = run_on_cuda(batch, {}, CudaPasses::apart);
    EXPECT_EQ(apart.encoder, large.encoder);
    EXPECT_EQ(apart.weight, large.weight);
    const JointOutcome again = run_on_cuda(batch);
    EXPECT_EQ(again.encoder, large.encoder);
    EXPECT_EQ(again.predictor, large.predictor);
    EXPECT_EQ(again.weight, large.weight);
    EXPECT_EQ(again.bias, large.bias);
  }
}

std::vector<double> rows_of(const std::vector<double>& all, std::int64_t b, std::int64_t count) {
  return {all.begin() + b * count, all.begin() + (b + 1) * count};
}

TEST(CudaJoint, AnUtteranceAloneAndInABatchGivesTheSameBits) {
  JointBatch batch{.B = 4, .T = 40, .U = 12, .H = 72, .K = 270};
  batch.variant = named("rnnt");
  batch.fill(13);
  batch.dropout = 0.1;
  batch.seed = 5;
  batch.utterance_ids = {3, 1, 4, 15};
  for (DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    SCOPED_TRACE(dtype_name(dtype));
    store_as(batch, dtype);
    const JointOutcome together = run_on_cuda(batch);
    for (std::int64_t b = 0; b < batch.B; ++b) {
      JointBatch alone = batch;
      alone.B = 1;
      alone.encoder = rows_of(batch.encoder, b, batch.T * batch.H);
      alone.predictor = rows_of(batch.predictor, b, (batch.U + 1) * batch.H);
      alone.targets = {batch.targets.begin() + b * batch.U,
                       batch.targets.begin() + (b + 1) * batch.U};
      const auto at = static_cast<std::size_t>(b);
      alone.frame_lengths = {batch.frame_lengths[at]};
      alone.target_lengths = {batch.target_lengths[at]};
      alone.utterance_ids = {batch.utterance_ids[at]};
      const JointOutcome got = run_on_cuda(alone);
      EXPECT_EQ(got.costs[0], together.costs[at]);
      EXPECT_EQ(got.encoder, rows_of(together.encoder, b, batch.T * batch.H));
      EXPECT_EQ(got.predictor, rows_of(together.predictor, b, (batch.U + 1) * batch.H));
    }
  }
}

/// NaN in one utterance reaches its gradients and the shared ones, and nothing else; padding may be NaN.
TEST(CudaJoint, PoisonAndPadding) {
  JointBatch batch{.B = 3, .T = 9, .U = 4, .H = 40, .K = 30};
  batch.variant = named("rnnt");
  batch.fill(14);
  batch.frame_lengths = {9, 7, 5};
  batch.target_lengths = {4, 2, 3};
  for (std::int64_t h = 0; h < batch.H; ++h) {
    batch.encoder[static_cast<std::size_t>((batch.T + 8) * batch.H + h)] = std::nan("");
    batch.predictor[static_cast<std::size_t>((batch.U + 1 + 4) * batch.H + h)] = std::nan("");
  }
  expect_reference_in_every_type(batch);
  batch.encoder[static_cast<std::size_t>((2 * batch.T + 1) * batch.H)] = std::nan("");
  for (DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    SCOPED_TRACE(dtype_name(dtype));
    store_as(batch, dtype);
    const JointOutcome want = batch.run_exactly();
    const JointOutcome got = run_on_cuda(batch);
    ASSERT_TRUE(std::isnan(want.costs[2]));
    const double tolerance = dtype == DType::float64 ? kExact : 0.1;
    EXPECT_LE(relative_error(got.costs, want.costs), tolerance);
    EXPECT_LE(relative_error(got.encoder, want.encoder), tolerance);
    EXPECT_LE(relative_error(got.predictor, want.predictor), tolerance);
    EXPECT_LE(relative_error(got.weight, want.weight), tolerance);
    EXPECT_LE(relative_error(got.bias, want.bias), tolerance);
  }
}

/// No path at all, no frames, nothing kept: exact zeros.
TEST(CudaJoint, NothingToDo) {
  JointBatch batch{.B = 2, .T = 3, .U = 5, .H = 33, .K = 9};
  batch.variant = named("monotonic");
  batch.fill(15);
  batch.frame_lengths = {3, 0};
  batch.target_lengths = {5, 2};
  for (DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    SCOPED_TRACE(dtype_name(dtype));
    store_as(batch, dtype);
    const JointOutcome got = run_on_cuda(batch);
    EXPECT_EQ(got.costs, std::vector<double>({kInf, kInf}));
    for (const auto* gradient : {&got.encoder, &got.predictor, &got.weight, &got.bias}) {
      for (double value : *gradient) ASSERT_EQ(value, 0.0);
    }
  }
}

TEST(CudaJoint, ATooSmallLimitIsRefused) {
  JointBatch batch{.B = 1, .T = 3, .U = 2, .H = 640, .K = 8193};
  batch.variant = named("rnnt");
  batch.fill(16);
  EXPECT_THROW(run_on_cuda(batch, {.workspace_limit = 1 << 20}), InvalidArgument);
}

}  // namespace
}  // namespace transducer::testing
