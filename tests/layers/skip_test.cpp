// SPDX-License-Identifier: Apache-2.0
//
// Certified skipping: what the backward leaves out is bounded by what it reports.
//
//   |gradient - exact|  <=  gain * skipped_mass  in each entry
//   skipped_mass        <=  skip_mass * expected number of arcs of a path
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reference/core/tap_plan.hpp"
#include "reference/variants/all.hpp"

// The layer under test: run_cpu or run_cuda.
#include TX_LAYER_OUTCOME

namespace transducer::testing {
namespace {

/// Peaked logits on a long lattice: most nodes lie on hardly any path.
DenseBatch peaked_batch(const VariantTable& variant) {
  DenseBatch batch;
  batch.B = 2;
  batch.T = 40;
  batch.U = 12;
  batch.variant = variant;
  batch.K = variant.heads + 9;
  std::mt19937_64 random(30);
  std::normal_distribution<double> normal(0.0, 4.0);
  batch.logits.resize(static_cast<std::size_t>(batch.B * batch.T * (batch.U + 1) * batch.K));
  for (double& x : batch.logits) x = normal(random);
  for (std::int64_t i = 0; i < batch.B * batch.U; ++i) {
    batch.targets.push_back(static_cast<std::int64_t>(random() % 8));
  }
  batch.frame_lengths = {40, 31};
  batch.target_lengths = {12, 10};
  return batch;
}

/// Sum of posteriors of utterance b: the expected number of arcs of a path.
double path_length(const DenseBatch& batch, const Outcome& o, std::int64_t b) {
  const std::size_t each = o.arc_posterior.size() / static_cast<std::size_t>(batch.B);
  double sum = 0.0;
  for (std::size_t i = 0; i < each; ++i)
    sum += o.arc_posterior[static_cast<std::size_t>(b) * each + i];
  return sum;
}

double utterance_error(const DenseBatch& batch, const Outcome& got, const Outcome& want,
                       std::int64_t b) {
  const std::size_t each = got.logits_gradient.size() / static_cast<std::size_t>(batch.B);
  double worst = 0.0;
  for (std::size_t i = 0; i < each; ++i) {
    const std::size_t at = static_cast<std::size_t>(b) * each + i;
    worst = std::max(worst, std::abs(got.logits_gradient[at] - want.logits_gradient[at]));
  }
  return worst;
}

class SkipsOfEachVariant : public ::testing::TestWithParam<std::size_t> {};

TEST_P(SkipsOfEachVariant, TheErrorIsBoundedByWhatIsReported) {
  DenseBatch batch = peaked_batch(make_variant(named_variants()[GetParam()], {{"fastemit", 0.5}}));
  const double gain = make_tap_plan(bind_table(batch.variant, batch.K, "test"), false).gain;
  const LayerOutcome exact = TX_RUN_LAYER(batch, {.skip_mass = 0.0});
  for (double mass : exact.skipped_mass) EXPECT_EQ(mass, 0.0);
  double before = 0.0;
  for (double skip_mass : {1e-9, 1e-6, 1e-3, 0.1, 0.5}) {
    const LayerOutcome got = TX_RUN_LAYER(batch, {.skip_mass = skip_mass});
    EXPECT_EQ(bit_difference("costs", got.costs, exact.costs), "");
    EXPECT_EQ(bit_difference("occupancy", got.occupancy, exact.occupancy), "");
    double all = 0.0;
    for (std::int64_t b = 0; b < batch.B; ++b) {
      const double mass = got.skipped_mass[static_cast<std::size_t>(b)];
      all += mass;
      EXPECT_LE(mass, skip_mass * path_length(batch, exact, b) * (1.0 + 1e-12));
      EXPECT_LE(utterance_error(batch, got, exact, b), gain * mass * (1.0 + 1e-12) + 1e-15);
    }
    EXPECT_GE(all, before);
    before = all;
  }
  EXPECT_GT(before, 0.0) << "nothing was ever skipped";
}

INSTANTIATE_TEST_SUITE_P(LayerSkip, SkipsOfEachVariant,
                         ::testing::Range(std::size_t{0}, named_variants().size()),
                         [](const auto& info) { return named_variants()[info.param].name; });

TEST(LayerSkip, SkippedMassIsTheOccupancyOfTheRowsThatAreZero) {
  DenseBatch batch = peaked_batch(make_variant(named_variants()[0], {}));
  const LayerOutcome got = TX_RUN_LAYER(batch, {.skip_mass = 0.01});
  const auto K = static_cast<std::size_t>(batch.K);
  const std::size_t each = got.occupancy.size() / 2;
  for (std::size_t b = 0; b < 2; ++b) {
    double mass = 0.0;
    for (std::size_t node = b * each; node < (b + 1) * each; ++node) {
      bool zero = true;
      for (std::size_t k = 0; k < K; ++k) zero = zero && got.logits_gradient[node * K + k] == 0.0;
      if (zero) mass += got.occupancy[node];
    }
    EXPECT_GT(mass, 0.0);
    EXPECT_NEAR(got.skipped_mass[b], mass, 1e-12);
  }
}

TEST(LayerSkip, TheDefaultDependsOnTheType) {
  DenseBatch batch = peaked_batch(make_variant(named_variants()[0], {}));
  const auto same = [&](DType dtype, double skip_mass) {
    const LayerOutcome standard = TX_RUN_LAYER(batch, {.dtype = dtype, .skip_mass = -1.0});
    const LayerOutcome given = TX_RUN_LAYER(batch, {.dtype = dtype, .skip_mass = skip_mass});
    return bit_difference("mass", standard.skipped_mass, given.skipped_mass) +
           bit_difference("gradient", standard.logits_gradient, given.logits_gradient);
  };
  EXPECT_EQ(same(DType::float64, 0.0), "");
  EXPECT_EQ(same(DType::float32, 1e-7), "");
  EXPECT_EQ(same(DType::bfloat16, 1e-5), "");
  EXPECT_EQ(same(DType::float16, 1e-5), "");
  EXPECT_NE(same(DType::float32, 1e-2), "") << "the test sees no difference";
}

TEST(LayerSkip, SkippingNothingLeavesNoRowOut) {
  DenseBatch batch = peaked_batch(make_variant(named_variants()[0], {}));
  const LayerOutcome got = TX_RUN_LAYER(batch, {.dtype = DType::float32, .skip_mass = 0.0});
  const auto K = static_cast<std::size_t>(batch.K);
  for (std::size_t node = 0; node < got.occupancy.size(); ++node) {
    if (got.occupancy[node] < 1e-30) continue;  // a float32 gradient of that size may round to 0
    bool zero = true;
    for (std::size_t k = 0; k < K; ++k) zero = zero && got.logits_gradient[node * K + k] == 0.0;
    EXPECT_FALSE(zero) << "node " << node << " has occupancy " << got.occupancy[node];
  }
}

}  // namespace
}  // namespace transducer::testing
