// SPDX-License-Identifier: Apache-2.0
//
// Gradients by hand and against finite differences: every named variant, FastEmit against its
// stop-gradient surrogate, the clamp and where it acts, NaN and what it touches.
#include "reference/gradient.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "reference/variants/all.hpp"
#include "tests/support/expect.hpp"
#include "tests/support/finite_difference.hpp"
#include "tests/support/noise.hpp"

namespace transducer::testing {
namespace {

double upstream_cost(const DenseBatch& batch, const Outcome& outcome) {
  double sum = 0.0;
  for (std::size_t b = 0; b < outcome.costs.size(); ++b) {
    if (outcome.costs[b] == kInf) continue;
    sum += outcome.costs[b] * (batch.upstream.empty() ? 1.0 : batch.upstream[b]);
  }
  return sum;
}

/// A ragged batch of a named variant with every optional input.
DenseBatch batch_of(const VariantTable& table) {
  DenseBatch batch = noise_batch(table, 2, 4, 2, 8, 3);
  batch.frame_lengths = {4, 3};
  batch.target_lengths = {2, 1};
  batch.arc_scores = noise(2 * 4 * 3 * batch.A(), 5);
  batch.start_scores = noise(2 * 4, 6);
  batch.final_scores = noise(2 * 5, 7);
  batch.upstream = {1.5, -0.75};
  return batch;
}

TEST(Gradient, EqualsFiniteDifferencesForEveryNamedVariant) {
  for (const NamedVariant& variant : named_variants()) {
    SCOPED_TRACE(variant.name);
    DenseBatch batch = batch_of(make_variant(variant, {{"delay_penalty", 0.1}, {"sigma", 0.05}}));
    const Outcome o = batch.run();
    const auto f = [&] { return upstream_cost(batch, batch.run()); };
    EXPECT_TRUE(close(o.logits_gradient, central_differences(batch.logits, f), 1e-8));
    EXPECT_TRUE(close(o.arc_scores_gradient, central_differences(batch.arc_scores, f), 1e-8));
    EXPECT_TRUE(close(o.start_scores_gradient, central_differences(batch.start_scores, f), 1e-8));
    EXPECT_TRUE(close(o.final_scores_gradient, central_differences(batch.final_scores, f), 1e-8));
  }
}

TEST(Gradient, EqualsFiniteDifferencesOfLogProbabilities) {
  for (const NamedVariant& variant : named_variants()) {
    SCOPED_TRACE(variant.name);
    DenseBatch batch = batch_of(make_variant(variant));
    batch.from_log_probs = true;
    const Outcome o = batch.run();
    const auto f = [&] { return upstream_cost(batch, batch.run()); };
    EXPECT_TRUE(close(o.logits_gradient, central_differences(batch.logits, f), 1e-8));
  }
}

// FastEmit is the gradient of nll + lambda sum stopgrad(gamma_label) (-log p(next label)).
TEST(Gradient, FastEmitEqualsFiniteDifferencesOfItsSurrogate) {
  constexpr double kLambda = 0.3;
  DenseBatch batch =
      noise_batch(make_variant(find_variant("rnnt"), {{"fastemit", kLambda}}), 1, 4, 2, 5);
  const Outcome at = batch.run();
  const auto surrogate = [&] {
    const Outcome o = batch.run();
    double sum = o.costs[0];
    for (std::size_t i = 1; i < o.arc_weights.size(); i += 2) {  // label arcs
      if (o.arc_weights[i] != -kInf) sum -= kLambda * at.arc_posterior[i] * o.arc_weights[i];
    }
    return sum;
  };
  EXPECT_TRUE(close(at.logits_gradient, central_differences(batch.logits, surrogate), 1e-8));
  DenseBatch plain = batch;
  plain.variant = rnnt(position(-1));
  EXPECT_EQ(plain.run().costs[0], at.costs[0]) << "the reported cost is plain nll";
}

TEST(Gradient, ClampActsBeforeTheUpstreamGradient) {
  DenseBatch batch = noise_batch(rnnt(position(-1)), 2, 3, 2, 4);
  const Outcome plain = batch.run();
  batch.clamp = 0.05;
  batch.upstream = {4.0, -0.5};
  const Outcome clamped = batch.run();
  std::vector<double> expected = plain.logits_gradient;
  bool clamps = false;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    clamps = clamps || std::abs(expected[i]) > 0.05;
    expected[i] = std::clamp(expected[i], -0.05, 0.05) * batch.upstream[2 * i / expected.size()];
  }
  EXPECT_TRUE(clamps);
  EXPECT_TRUE(close(clamped.logits_gradient, expected, 1e-15));
}

TEST(Gradient, ClampActsBeforeTheReduction) {
  DenseBatch batch = noise_batch(rnnt(position(-1)), 2, 3, 2, 4);
  batch.clamp = 0.05;
  const Outcome none = batch.run();
  batch.reduction = Reduction::mean;
  std::vector<double> expected = none.logits_gradient;
  for (double& g : expected) g /= 2;
  EXPECT_TRUE(close(batch.run().logits_gradient, expected, 1e-15));
}

TEST(Gradient, ClampSparesTheColumnsOfGroupsThatOptOut) {
  DenseBatch batch = noise_batch(make_variant(find_variant("tdt")), 1, 4, 2, 7);  // V = 4
  const Outcome plain = batch.run();
  batch.clamp = 0.01;
  const Outcome clamped = batch.run();
  std::vector<double> expected = plain.logits_gradient;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (i % 7 < 4) expected[i] = std::clamp(expected[i], -0.01, 0.01);
  }
  EXPECT_TRUE(close(clamped.logits_gradient, expected, 0.0));
}

TEST(Gradient, ColumnsInTheRangeOfAnyGroupThatOptsOutAreNotClamped) {
  VariantTable table = rnnt(position(-1));
  add_group(table, {.begin = position(1),
                    .end = position(3),
                    .exclude_fixed = true,
                    .excluded = position(1),  // excluded, yet in the range
                    .clamp = false});         // and read by no arc
  DenseBatch batch = noise_batch(table, 1, 3, 2, 4);
  const Outcome plain = batch.run();
  batch.clamp = 0.01;
  std::vector<double> expected = plain.logits_gradient;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (i % 4 == 0 || i % 4 == 3) expected[i] = std::clamp(expected[i], -0.01, 0.01);
  }
  EXPECT_TRUE(close(batch.run().logits_gradient, expected, 0.0));
}

TEST(Gradient, ClampLeavesArcStartAndFinalScoresAlone) {
  DenseBatch batch = batch_of(rnnt(position(-1)));
  const Outcome plain = batch.run();
  batch.clamp = 0.01;
  const Outcome clamped = batch.run();
  EXPECT_TRUE(same_bits(clamped.arc_scores_gradient, plain.arc_scores_gradient));
  EXPECT_TRUE(same_bits(clamped.start_scores_gradient, plain.start_scores_gradient));
  EXPECT_TRUE(same_bits(clamped.final_scores_gradient, plain.final_scores_gradient));
}

TEST(Gradient, ATargetEqualToBlankAddsBothContributions) {
  // One frame, one label, label = blank = 1: label then blank, both column 1.
  DenseBatch batch = noise_batch(rnnt(position(-1)), 1, 1, 1, 2);
  batch.logits = {0, std::log(3.0), 0, std::log(1.0)};
  batch.targets = {1};
  const Outcome o = batch.run();
  EXPECT_NEAR(o.costs[0], -std::log(3.0 / 4 * 1 / 2), 1e-15);
  EXPECT_TRUE(close(o.logits_gradient, std::vector<double>{0.25, 0.75 - 1, 0.5, 0.5 - 1}, 1e-15));
  // Two frames: at (0, 0) the blank and the label read the same column.
  batch = noise_batch(rnnt(position(-1)), 1, 2, 1, 2);
  batch.targets = {1};
  const Outcome both = batch.run();
  const auto f = [&] { return batch.run().costs[0]; };
  EXPECT_TRUE(close(both.logits_gradient, central_differences(batch.logits, f), 1e-9));
}

TEST(Gradient, MinusInfinityLogitsHaveProbabilityZero) {
  DenseBatch batch = noise_batch(rnnt(position(-1)), 1, 3, 2, 5);
  const Outcome with_all = batch.run();
  DenseBatch masked = batch;
  std::int64_t unused = 0;
  while (unused == batch.targets[0] || unused == batch.targets[1]) ++unused;
  for (std::size_t i = std::size_t(unused); i < masked.logits.size(); i += 5) {
    masked.logits[i] = -kInf;
  }
  const Outcome o = masked.run();
  EXPECT_LT(o.costs[0], with_all.costs[0]);
  for (std::size_t i = std::size_t(unused); i < masked.logits.size(); i += 5) {
    EXPECT_EQ(o.logits_gradient[i], 0.0);
  }
  const auto f = [&] { return masked.run().costs[0]; };
  EXPECT_TRUE(close(o.logits_gradient, central_differences(masked.logits, f), 1e-8));
}

TEST(Gradient, NaNOnAPathMakesTheUtteranceNaNAndNoOther) {
  DenseBatch batch = batch_of(rnnt(position(-1)));
  batch.upstream[1] = 0.0;  // NaN even where the upstream gradient is 0
  const Outcome clean = batch.run();
  batch.logits[std::size_t(1 * 4 * 3 * 8)] = kInf;  // utterance 1, node (0, 0)
  const Outcome o = batch.run();
  EXPECT_EQ(o.costs[0], clean.costs[0]);
  EXPECT_TRUE(std::isnan(o.costs[1]));
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < 4; ++t) {
      for (std::int64_t u = 0; u < 3; ++u) {
        for (std::int64_t k = 0; k < 8; ++k) {
          const auto i = static_cast<std::size_t>(((b * 4 + t) * 3 + u) * 8 + k);
          const double g = o.logits_gradient[i];
          const bool valid =
              t < batch.frame_lengths[std::size_t(b)] && u <= batch.target_lengths[std::size_t(b)];
          if (b == 0) {
            EXPECT_EQ(g, clean.logits_gradient[i]);
          } else if (valid) {
            EXPECT_TRUE(std::isnan(g));
          } else {
            EXPECT_EQ(g, 0.0) << "padding";
          }
        }
      }
    }
  }
  for (std::int64_t t = 0; t < 4; ++t) {
    EXPECT_EQ(std::isnan(o.start_scores_gradient[std::size_t(4 + t)]), t < 3);
    EXPECT_FALSE(std::isnan(o.start_scores_gradient[std::size_t(t)]));
    EXPECT_EQ(std::isnan(o.final_scores_gradient[std::size_t(5 + t)]), t <= 3);
  }
}

TEST(Gradient, NaNThatNoPathReadsChangesNothing) {
  DenseBatch batch = noise_batch(rnnt(position(-1)), 1, 3, 2, 4);
  const Outcome clean = batch.run();
  // RNN-T may not leave (2, 0) or (2, 1) by a blank, but its label arcs read both nodes. Node (2,
  // 0) is on a path; with the band it is not.
  batch.band = {0, 2, 0, 2, 2, 2};
  const Outcome banded = batch.run();
  for (std::size_t k = 0; k < 8; ++k) batch.logits[2 * 3 * 4 + k] = kNaN;  // (2, 0), (2, 1)
  const Outcome o = batch.run();
  EXPECT_TRUE(same_bits(o.costs, banded.costs));
  EXPECT_TRUE(same_bits(o.logits_gradient, banded.logits_gradient));
  batch.band = {};
  EXPECT_TRUE(std::isnan(batch.run().costs[0]));
  // HAT's label arc at u = U is absent, so its label softmax is not read there.
  batch = noise_batch(make_variant(find_variant("hat")), 1, 3, 2, 4);
  const Outcome hat = batch.run();
  batch.logits[2 * 4] = kNaN;  // node (0, 2), a label column
  EXPECT_TRUE(same_bits(batch.run().costs, hat.costs));
  EXPECT_TRUE(same_bits(batch.run().logits_gradient, hat.logits_gradient));
  EXPECT_NE(clean.costs[0], banded.costs[0]);
}

TEST(Gradient, NaNWinsOverNoPath) {
  // Every label is impossible (-inf), so no path has weight; yet a NaN lies on one.
  DenseBatch batch = noise_batch(rnnt(position(-1)), 1, 2, 1, 3);
  batch.arc_scores.assign(2 * 2 * 2, 0.0);
  batch.start_scores = {0.0, -kInf};
  for (std::size_t node : {0u, 2u}) {  // the label column of (0, 0) and (1, 0)
    batch.logits[node * 3 + std::size_t(batch.targets[0])] = -kInf;
  }
  EXPECT_EQ(batch.run().costs[0], kInf);
  batch.logits[3 * 3] = kNaN;
  EXPECT_TRUE(std::isnan(batch.run().costs[0])) << "-inf logits do not remove arcs";
  batch.arc_scores = {0, -kInf, 0, 0, 0, -kInf, 0, 0};
  EXPECT_EQ(batch.run().costs[0], kInf) << "-inf masks do";
}

}  // namespace
}  // namespace transducer::testing
