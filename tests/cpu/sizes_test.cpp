// SPDX-License-Identifier: Apache-2.0
//
// The dense source of the CPU layer against the reference at sizes around every boundary, for
// memory laid out in every way, for large and infinite logits, and for a long utterance in float32.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "reference/variants/all.hpp"
#include "tests/support/cpu_outcome.hpp"
#include "tests/support/joint_batch.hpp"
#include "tests/support/outcome.hpp"

namespace transducer::testing {
namespace {

VariantTable plain() { return make_variant(named_variants()[0], {}); }

/// One blank and one label arc over a softmax of all columns, blank first: K = 1 is legal.
VariantTable one_column() {
  VariantTable table;
  set_name(table, "one column");
  add_group(table, {.begin = position(0), .end = vocabulary_plus(0)});
  add_arc(table, {.dt = 1,
                  .du = 0,
                  .num_columns = 1,
                  .columns = {fixed_column(position(0), group_bit(0))},
                  .may_finish = true});
  add_arc(table, {.dt = 0, .du = 1, .num_columns = 1, .columns = {label_column(group_bit(0))}});
  return table;
}

DenseBatch batch_of(const VariantTable& variant, std::int64_t B, std::int64_t T, std::int64_t U,
                    std::int64_t K, unsigned seed, double scale = 2.0) {
  DenseBatch batch;
  batch.B = B;
  batch.T = T;
  batch.U = U;
  batch.K = K;
  batch.variant = variant;
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0.0, scale);
  batch.logits.resize(static_cast<std::size_t>(B * T * (U + 1) * K));
  for (double& x : batch.logits) x = normal(random);
  const auto vocabulary = static_cast<std::uint64_t>(K - variant.heads);
  for (std::int64_t i = 0; i < B * U; ++i) {
    batch.targets.push_back(static_cast<std::int64_t>(random() % vocabulary));
  }
  return batch;
}

/// float64 to `tolerance`; float32 to 2e-5 of the largest gradient and of the cost.
void expect_reference(const DenseBatch& batch, CpuRun run = {}, double tolerance = 1e-11) {
  DenseBatch stored = as_stored(batch, run);
  const Outcome want = stored.run();
  const CpuOutcome got = run_cpu(stored, run);
  if (run.dtype == DType::float64) {
    EXPECT_EQ(outcome_difference(got, want, tolerance), "");
  } else {
    EXPECT_LE(relative_error(got.costs, want.costs), 2e-5);
    // With one column the gradient is 0, the difference of two numbers near 1.
    EXPECT_LE(relative_error(got.logits_gradient, want.logits_gradient, batch.K == 1 ? 1.0 : 0.0),
              2e-5 + (run.dtype == DType::float32 ? 0.0 : 0.004));
  }
  EXPECT_TRUE(got.gaps_are_intact);
}

void expect_reference_in_both_types(const DenseBatch& batch) {
  expect_reference(batch);
  expect_reference(batch, {.dtype = DType::float32});
}

TEST(CpuSizes, ColumnsAroundAVector) {
  for (std::int64_t columns : {1,  2,  3,  7,  8,   9,   15,  16,   17,   31,   32,
                               33, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2049}) {
    SCOPED_TRACE(columns);
    expect_reference_in_both_types(batch_of(one_column(), 2, 3, 2, columns, 40));
  }
}

TEST(CpuSizes, FewFramesAndLabels) {
  for (const NamedVariant& variant : named_variants()) {
    const VariantTable table = make_variant(variant, {});
    for (std::int64_t frames : {0, 1, 2, 3}) {
      for (std::int64_t labels : {0, 1, 2, 7, 8, 9, 17}) {  // more labels than frames too
        SCOPED_TRACE(variant.name + " " + std::to_string(frames) + " " + std::to_string(labels));
        expect_reference_in_both_types(batch_of(table, 2, frames, labels, table.heads + 6, 41));
      }
    }
  }
}

TEST(CpuSizes, LabelsAroundAVector) {
  for (std::int64_t labels : {6, 7, 8, 14, 15, 16, 30, 31, 32, 33, 64}) {
    SCOPED_TRACE(labels);
    expect_reference_in_both_types(batch_of(plain(), 1, 5, labels, 5, 42));
  }
}

TEST(CpuSizes, ArcsAsLongAsTheUtterance) {
  for (std::int64_t longest : {5, 6, 7, 8, 1000}) {
    VariantTable table = one_column();
    add_arc(table, {.dt = static_cast<int>(longest),
                    .du = 0,
                    .num_columns = 1,
                    .columns = {fixed_column(position(1), group_bit(0))},
                    .may_finish = true});
    add_arc(table, {.dt = static_cast<int>(longest) - 1,
                    .du = 1,
                    .num_columns = 1,
                    .columns = {label_column(group_bit(0))},
                    .may_finish = true});
    SCOPED_TRACE(longest);
    expect_reference_in_both_types(batch_of(table, 2, 7, 3, 6, 43));
  }
}

TEST(CpuSizes, NoUtterances) {
  DenseBatch batch = batch_of(plain(), 0, 4, 2, 5, 44);
  for (int r = 0; r <= static_cast<int>(Reduction::mean_frame); ++r) {
    batch.reduction = static_cast<Reduction>(r);
    EXPECT_EQ(run_cpu(batch).total, 0.0);
  }
}

TEST(CpuSizes, SeveralWaves) {
  // More lattices than fit into one wave: the workspace of many is that of fewer.
  DenseBatch batch = batch_of(plain(), 60, 180, 90, 3, 45);
  for (std::int64_t b = 0; b < batch.B; ++b) {
    batch.frame_lengths.push_back(180 - b % 7 * 20);
    batch.target_lengths.push_back(90 - b % 11 * 9);
  }
  LossShape shape{.batch = 60,
                  .frames = 180,
                  .labels = 90,
                  .columns = 3,
                  .arcs = 2,
                  .groups = 1,
                  .dtype = DType::float64};
  const std::size_t all = cpu::plan_workspace(shape, {.threads = 2}).scratch_bytes();
  shape.batch = 600;
  EXPECT_EQ(cpu::plan_workspace(shape, {.threads = 2}).scratch_bytes(), all)
      << "60 utterances are one wave: the test tests nothing";
  const Outcome want = batch.run();
  const CpuOutcome got = run_cpu(batch, {.taps = false});
  EXPECT_EQ(outcome_difference(got, want, 1e-11, false), "");
}

TEST(CpuSizes, LargeAndInfiniteLogits) {
  for (double scale : {100.0, 1e4}) {
    // alpha and beta reach 1e5, where a unit in the last place is 1.5e-11; a posterior adds four such.
    const double tolerance = scale * 1e-13;
    expect_reference(batch_of(plain(), 2, 6, 3, 17, 46, scale), {}, tolerance);
    expect_reference(batch_of(make_variant(named_variants()[3], {}), 2, 6, 3, 20, 47, scale), {},
                     tolerance);
    DenseBatch batch = batch_of(plain(), 2, 6, 3, 17, 48, scale);
    const CpuRun run{.dtype = DType::float32};
    DenseBatch stored = as_stored(batch, run);
    EXPECT_LE(relative_error(run_cpu(stored, run).costs, stored.run().costs), 2e-5);
  }
  DenseBatch batch = batch_of(plain(), 3, 6, 3, 17, 49);
  for (std::size_t i = 0; i < batch.logits.size(); i += 3) batch.logits[i] = -kInf;
  expect_reference_in_both_types(batch);
  std::fill(batch.logits.begin(), batch.logits.end(), -kInf);
  expect_reference_in_both_types(batch);
}

class EachLayout : public ::testing::TestWithParam<std::tuple<Layout, Layout, DType>> {};

TEST_P(EachLayout, EqualsReference) {
  const auto [input, output, dtype] = GetParam();
  DenseBatch batch = batch_of(plain(), 2, 5, 3, 35, 50);
  batch.frame_lengths = {5, 3};
  batch.target_lengths = {2, 3};
  std::mt19937_64 random(51);
  std::normal_distribution<double> normal;
  batch.arc_scores.resize(2 * 5 * 4 * 2);
  batch.start_scores.resize(2 * 5);
  batch.final_scores.resize(2 * 6);
  for (auto* scores : {&batch.arc_scores, &batch.start_scores, &batch.final_scores}) {
    for (double& score : *scores) score = normal(random);
  }
  CpuRun run{.dtype = dtype, .scores_dtype = dtype, .input = input, .output = output};
  expect_reference(batch, run);
  // Over the logits themselves: the same bits as beside them.
  DenseBatch stored = as_stored(batch, run);
  const CpuOutcome beside = run_cpu(stored, run);
  run.in_place = true;
  EXPECT_EQ(bit_difference("in place", run_cpu(stored, run), beside, batch.B), "");
  run.input = run.output = Layout::contiguous;
  run.in_place = false;
  EXPECT_EQ(bit_difference("contiguous", run_cpu(stored, run), beside, batch.B), "");
}

INSTANTIATE_TEST_SUITE_P(CpuSizes, EachLayout,
                         ::testing::Combine(::testing::Values(Layout::contiguous, Layout::shifted,
                                                              Layout::spread, Layout::reversed),
                                            ::testing::Values(Layout::contiguous, Layout::shifted,
                                                              Layout::spread, Layout::reversed),
                                            ::testing::Values(DType::float64, DType::float32,
                                                              DType::bfloat16)));

TEST(CpuSizes, LongUtteranceKeepsItsDigitsInFloat32) {
  DenseBatch batch = batch_of(plain(), 1, 1500, 400, 5, 52, 1.0);
  CpuRun run{.dtype = DType::float32, .taps = false};
  run.skip_mass = -1.0;
  DenseBatch stored = as_stored(batch, run);
  const CpuOutcome got = run_cpu(stored, run);
  // The reference without its taps.
  const LossRequest request = stored.request();
  Outcome want;
  LossResult result;
  result.costs = DenseBatch::make(want.costs, {1});
  result.logits_gradient = DenseBatch::make(want.logits_gradient, {1, 1500, 401, 5});
  run_reference(request, result);
  EXPECT_LE(relative_error(got.costs, want.costs), 1e-6);
  double squares = 0.0, norm = 0.0, worst_row = 0.0, largest_row = 0.0;
  for (std::size_t row = 0; row < want.logits_gradient.size(); row += 5) {
    double error = 0.0, size = 0.0;
    for (std::size_t i = row; i < row + 5; ++i) {
      error += std::pow(got.logits_gradient[i] - want.logits_gradient[i], 2);
      size += std::pow(want.logits_gradient[i], 2);
    }
    squares += error;
    norm += size;
    worst_row = std::max(worst_row, std::sqrt(error));
    largest_row = std::max(largest_row, std::sqrt(size));
  }
  EXPECT_LE(std::sqrt(squares / norm), 1e-5);
  EXPECT_LE(worst_row / largest_row, 1e-5);
  std::cout << "note: T = 1500, U = 400, float32: gradient error " << std::sqrt(squares / norm)
            << ", worst row " << worst_row / largest_row << '\n';
}

}  // namespace
}  // namespace transducer::testing
