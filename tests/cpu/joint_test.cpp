// SPDX-License-Identifier: Apache-2.0
//
// The joint source of the CPU layer against the reference, at sizes around every tile: kTileRows
// lattice rows, kTileColumns columns, kChunkRows kept rows.
#include "cpu/joint.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "reference/variants/all.hpp"
#include "tests/support/joint_batch.hpp"

namespace transducer::testing {
namespace {

constexpr double kExact = 1e-12;  // float64
constexpr double kSingle = 2e-5;  // float32

VariantTable named(const std::string& name) {
  for (const NamedVariant& variant : named_variants()) {
    if (variant.name == name) return make_variant(variant, {});
  }
  throw std::logic_error("no variant " + name);
}

void expect_reference(JointBatch& batch, double tolerance) {
  const JointOutcome want = batch.run(true);
  const JointOutcome got = batch.run(false);
  EXPECT_LE(relative_error(got.costs, want.costs), tolerance);
  EXPECT_LE(relative_error({got.total}, {want.total}), tolerance);
  EXPECT_LE(relative_error(got.encoder, want.encoder), tolerance);
  EXPECT_LE(relative_error(got.predictor, want.predictor), tolerance);
  EXPECT_LE(relative_error(got.weight, want.weight), tolerance);
  EXPECT_LE(relative_error(got.bias, want.bias), tolerance);
}

void store_as(JointBatch& batch, DType dtype) {
  batch.encoder_dtype = batch.predictor_dtype = batch.weight_dtype = batch.bias_dtype = dtype;
}

/// Both float types, one after the other.
void expect_reference_in_both_types(JointBatch batch) {
  expect_reference(batch, kExact);
  store_as(batch, DType::float32);
  expect_reference(batch, kSingle);
}

class EachVariantJoint : public ::testing::TestWithParam<std::size_t> {};

TEST_P(EachVariantJoint, EqualsReference) {
  JointBatch batch{.B = 3, .T = 6, .U = 4, .H = 11};
  std::map<std::string, ParameterValue> arguments = {
      {"fastemit", 0.25}, {"sigma", 0.125}, {"delay_penalty", 0.0625}};
  batch.variant = make_variant(named_variants()[GetParam()], arguments);
  batch.K = batch.variant.heads + 13;
  batch.fill(1);
  expect_reference_in_both_types(batch);
}

INSTANTIATE_TEST_SUITE_P(Joint, EachVariantJoint,
                         ::testing::Range(std::size_t{0}, named_variants().size()),
                         [](const auto& info) { return named_variants()[info.param].name; });

class EachActivation : public ::testing::TestWithParam<int> {};

TEST_P(EachActivation, EqualsReference) {
  JointBatch batch{.B = 2, .T = 5, .U = 3, .H = 21, .K = 9};
  batch.variant = named("rnnt");
  batch.activation = static_cast<Activation>(GetParam());
  batch.fill(2);
  expect_reference_in_both_types(batch);
}

INSTANTIATE_TEST_SUITE_P(Joint, EachActivation, ::testing::Range(0, 7));

TEST(Joint, ColumnsAroundATile) {
  static_assert(cpu::kTileColumns == 1024);
  for (std::int64_t columns : {2, 15, 16, 17, 1023, 1024, 1025, 2049}) {
    SCOPED_TRACE(columns);
    JointBatch batch{.B = 1, .T = 3, .U = 2, .H = 7, .K = columns};
    batch.variant = named("rnnt");
    batch.fill(3);
    // A label in the last block, next to the blank.
    if (columns > 2) batch.targets[0] = columns - 2;
    expect_reference_in_both_types(batch);
  }
}

TEST(Joint, TwoSoftmaxesAndSumsAcrossTiles) {
  for (const char* name : {"tdt", "bypass", "hat"}) {
    for (std::int64_t columns : {1024, 1026, 2049}) {
      SCOPED_TRACE(std::string(name) + " " + std::to_string(columns));
      JointBatch batch{.B = 1, .T = 4, .U = 2, .H = 5, .K = columns};
      batch.variant = named(name);
      batch.fill(4);
      expect_reference_in_both_types(batch);
    }
  }
}

TEST(Joint, RowsAroundATileAndAChunk) {
  static_assert(cpu::kTileRows == 128 && cpu::kChunkRows == 1024);
  const std::vector<std::pair<std::int64_t, std::int64_t>> sizes = {
      {127, 0}, {64, 1}, {43, 2}, {341, 2}, {512, 1}, {205, 4}, {1025, 0}, {683, 2}};
  for (const auto& [frames, labels] : sizes) {
    SCOPED_TRACE(frames * (labels + 1));
    JointBatch batch{.B = 1, .T = frames, .U = labels, .H = 5, .K = 6};
    batch.variant = named("rnnt");
    batch.fill(5);
    expect_reference_in_both_types(batch);
  }
}

TEST(Joint, WidthsAroundAVector) {
  for (std::int64_t hidden : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 129, 257}) {
    SCOPED_TRACE(hidden);
    JointBatch batch{.B = 2, .T = 4, .U = 2, .H = hidden, .K = 7};
    batch.variant = named("monotonic");
    batch.fill(6);
    batch.dropout = 0.25;
    batch.seed = 0x1234567890abcdefull;
    expect_reference_in_both_types(batch);
  }
}

TEST(Joint, DropoutMaskAndUtteranceIds) {
  JointBatch batch{.B = 3, .T = 5, .U = 3, .H = 19, .K = 8};
  batch.variant = named("tdt");
  batch.K += batch.variant.heads;
  batch.fill(7);
  batch.dropout = 0.5;
  batch.seed = 99;
  const JointOutcome plain = batch.run(false);
  expect_reference_in_both_types(batch);
  batch.utterance_ids = {41, 0, 7};
  expect_reference_in_both_types(batch);
  const JointOutcome other = batch.run(false);
  EXPECT_NE(plain.costs[0], other.costs[0]) << "utterance_ids are not read";
  batch.predictor_mask.assign(12, true);
  batch.predictor_mask[1] = batch.predictor_mask[4] = batch.predictor_mask[5] = false;
  expect_reference_in_both_types(batch);
  EXPECT_NE(batch.run(false).costs[0], other.costs[0]) << "predictor_mask is not read";
}

TEST(Joint, NoBias) {
  JointBatch batch{.B = 2, .T = 4, .U = 2, .H = 6, .K = 5};
  batch.variant = named("rnnt");
  batch.fill(8);
  batch.bias.clear();
  expect_reference_in_both_types(batch);
}

TEST(Joint, ReductionsScaleEveryGradient) {
  JointBatch batch{.B = 3, .T = 5, .U = 2, .H = 6, .K = 5};
  batch.variant = named("rnnt");
  batch.fill(9);
  for (int r = 0; r <= static_cast<int>(Reduction::mean_frame); ++r) {
    batch.reduction = static_cast<Reduction>(r);
    expect_reference_in_both_types(batch);
  }
}

TEST(Joint, StridedInputsAndOutputs) {
  for (Layout layout : {Layout::shifted, Layout::spread, Layout::reversed}) {
    JointBatch batch{.B = 2, .T = 4, .U = 2, .H = 9, .K = 7};
    batch.variant = named("rnnt");
    batch.layout = layout;
    batch.fill(10);
    expect_reference_in_both_types(batch);
  }
}

TEST(Joint, TypesMayDiffer) {
  const DType types[] = {DType::float64, DType::float32, DType::bfloat16, DType::float16};
  JointBatch batch{.B = 2, .T = 4, .U = 2, .H = 9, .K = 7};
  batch.variant = named("rnnt");
  batch.fill(11);
  for (int which = 0; which < 256; which += 7) {
    batch.encoder_dtype = types[which & 3];
    batch.predictor_dtype = types[which >> 2 & 3];
    batch.weight_dtype = types[which >> 4 & 3];
    batch.bias_dtype = types[which >> 6 & 3];
    SCOPED_TRACE(which);
    const JointOutcome want = batch.run(true);
    const JointOutcome got = batch.run(false);
    const auto each = {std::tuple{batch.encoder_dtype, &got.encoder, &want.encoder},
                       std::tuple{batch.predictor_dtype, &got.predictor, &want.predictor},
                       std::tuple{batch.weight_dtype, &got.weight, &want.weight},
                       std::tuple{batch.bias_dtype, &got.bias, &want.bias}};
    bool full = false;  // float64 anywhere: all arithmetic is double
    for (const auto& [dtype, g, w] : each) full = full || dtype == DType::float64;
    EXPECT_LE(relative_error(got.costs, want.costs), full ? kExact : kSingle);
    for (const auto& [dtype, g, w] : each) {
      const double rounding = dtype == DType::float64    ? 0.0
                              : dtype == DType::float32  ? std::ldexp(1.0, -24)
                              : dtype == DType::bfloat16 ? std::ldexp(1.0, -8)
                                                         : std::ldexp(1.0, -11);
      EXPECT_LE(relative_error(*g, *w), (full ? kExact : kSingle) + rounding);
    }
  }
}

/// Column `k` of W is read by no arc of this table: only columns 0, 1, 2 are.
VariantTable unnormalised() {
  VariantTable table;
  set_name(table, "unnormalised");
  add_arc(table, {.dt = 1,
                  .du = 0,
                  .num_columns = 1,
                  .columns = {fixed_column(position(0))},
                  .may_finish = true});
  add_arc(table, {.dt = 0, .du = 1, .num_columns = 1, .columns = {label_column()}});
  return table;
}

TEST(Joint, NaNInARowThatNoArcReadsChangesNothing) {
  for (std::int64_t columns : {6, 1030}) {
    JointBatch batch{.B = 2, .T = 3, .U = 2, .H = 5, .K = columns};
    batch.variant = unnormalised();
    batch.fill(12);
    for (std::int64_t& target : batch.targets) target = 1 + target % 2;
    for (double special : {kNaN, kInf, -kInf}) {
      for (std::int64_t h = 0; h < batch.H; ++h) {
        batch.weight[static_cast<std::size_t>((columns - 2) * batch.H + h)] = special;
      }
      batch.bias[static_cast<std::size_t>(columns - 1)] = special;
      const JointOutcome got = batch.run(false);
      for (const auto* values :
           {&got.costs, &got.encoder, &got.predictor, &got.weight, &got.bias}) {
        for (double value : *values) ASSERT_TRUE(std::isfinite(value)) << special;
      }
      expect_reference_in_both_types(batch);
    }
  }
}

TEST(Joint, NaNThatIsReadReachesTheSharedGradientsAndNoOtherUtterance) {
  JointBatch batch{.B = 3, .T = 4, .U = 2, .H = 5, .K = 6};
  batch.variant = named("rnnt");
  batch.fill(13);
  batch.encoder[static_cast<std::size_t>(1 * batch.T * batch.H + 2)] = kNaN;
  const JointOutcome got = batch.run(false);
  EXPECT_TRUE(std::isfinite(got.costs[0]) && std::isnan(got.costs[1]) &&
              std::isfinite(got.costs[2]));
  for (double value : got.weight) EXPECT_TRUE(std::isnan(value));
  expect_reference_in_both_types(batch);
}

TEST(Joint, PaddingMayHoldNaN) {
  JointBatch batch{.B = 2, .T = 4, .U = 2, .H = 5, .K = 6};
  batch.variant = named("rnnt");
  batch.fill(14);
  const JointOutcome clean = batch.run(false);
  const auto put = [&](std::vector<double>& values, std::int64_t rows, std::int64_t from) {
    for (std::int64_t r = from; r < rows; ++r) {
      for (std::int64_t h = 0; h < batch.H; ++h) {
        values[static_cast<std::size_t>((rows + r) * batch.H + h)] = kNaN;
      }
    }
  };
  put(batch.encoder, batch.T, batch.frame_lengths[1]);
  put(batch.predictor, batch.U + 1, batch.target_lengths[1] + 1);
  const JointOutcome dirty = batch.run(false);
  EXPECT_EQ(bit_difference("costs", dirty.costs, clean.costs), "");
  EXPECT_EQ(bit_difference("encoder", dirty.encoder, clean.encoder), "");
  EXPECT_EQ(bit_difference("predictor", dirty.predictor, clean.predictor), "");
  EXPECT_EQ(bit_difference("weight", dirty.weight, clean.weight), "");
}

TEST(Joint, NoFramesAndNoUtterances) {
  JointBatch batch{.B = 2, .T = 0, .U = 0, .H = 3, .K = 4};
  batch.variant = named("rnnt");
  batch.fill(15);
  batch.frame_lengths = {0, 0};
  const JointOutcome got = batch.run(false);
  EXPECT_EQ(got.total, 0.0);
  for (double value : got.weight) EXPECT_EQ(value, 0.0);
  batch.B = 0;
  for (auto* lengths : {&batch.frame_lengths, &batch.target_lengths}) lengths->clear();
  batch.predictor.clear();
  EXPECT_EQ(batch.run(false).total, 0.0);
}

TEST(JointSkip, KeepsTheBoundOfTheDenseSource) {
  JointBatch batch{.B = 2, .T = 40, .U = 12, .H = 8, .K = 9};
  batch.variant = make_variant(named_variants()[0], {});
  batch.fill(31);
  for (double& w : batch.weight) w *= 4.0;
  batch.skip_mass = 0.0;
  const JointOutcome exact = batch.run(false);
  for (double skip_mass : {1e-6, 1e-3}) {
    batch.skip_mass = skip_mass;
    const JointOutcome got = batch.run(false);
    EXPECT_EQ(bit_difference("costs", got.costs, exact.costs), "");
    // dc is the sum of all rows of d z: its error is at most gain (2) times all skipped occupancy,
    // which is at most skip_mass times the longest path, in each of the two utterances.
    double error = 0.0;
    for (std::size_t k = 0; k < got.bias.size(); ++k) {
      error = std::max(error, std::abs(got.bias[k] - exact.bias[k]));
    }
    EXPECT_LE(error, 2.0 * skip_mass * 2 * (40 + 12));
    EXPECT_GT(error, 0.0) << "nothing was skipped";
  }
}

}  // namespace
}  // namespace transducer::testing
