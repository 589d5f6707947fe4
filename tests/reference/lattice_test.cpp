// SPDX-License-Identifier: Apache-2.0
//
// Alpha, beta, posteriors and both semirings on lattices small enough to do by hand, the band and
// the start and final scores, and a long lattice that must not lose digits.
#include "reference/lattice.hpp"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "reference/variants/all.hpp"
#include "tests/support/expect.hpp"
#include "tests/support/noise.hpp"

namespace transducer::testing {
namespace {

/// RNN-T arcs with the given weights: alternately blank and label of (0, 0), (0, 1), ..., (1, 0).
struct WeightedLattice {
  std::int64_t T, U;
  std::vector<double> weights;  // [T, U+1, 2]
  std::vector<double> start, final;
  Semiring semiring = Semiring::log;
  VariantTable variant = rnnt(position(-1));

  std::int64_t A() const { return variant.num_arcs; }

  Outcome run() {
    LossRequest request;
    request.source = ArcWeightSource{DenseBatch::real(weights, {1, T, U + 1, A()})};
    std::vector<std::int64_t> frames = {T}, labels = {U};
    request.frame_lengths = DenseBatch::index(frames, {1});
    request.target_lengths = DenseBatch::index(labels, {1});
    if (!start.empty()) request.start_scores = DenseBatch::real(start, {1, T});
    if (!final.empty()) request.final_scores = DenseBatch::real(final, {1, T + 1});
    request.variant = variant;
    request.semiring = semiring;
    request.reduction = Reduction::none;
    Outcome o;
    LossResult result;
    result.costs = DenseBatch::make(o.costs, {1});
    result.logits_gradient = {};
    result.arc_weights_gradient = DenseBatch::make(o.arc_scores_gradient, {1, T, U + 1, A()});
    if (!start.empty()) {
      result.start_scores_gradient = DenseBatch::make(o.start_scores_gradient, {1, T});
    }
    if (!final.empty()) {
      result.final_scores_gradient = DenseBatch::make(o.final_scores_gradient, {1, T + 1});
    }
    result.arc_weights = DenseBatch::make(o.arc_weights, {1, T, U + 1, A()});
    result.alpha = DenseBatch::make(o.alpha, {1, T + 1, U + 1});
    result.beta = DenseBatch::make(o.beta, {1, T + 1, U + 1});
    result.arc_posterior = DenseBatch::make(o.arc_posterior, {1, T, U + 1, A()});
    result.occupancy = DenseBatch::make(o.occupancy, {1, T, U + 1});
    run_reference(request, result);
    return o;
  }
};

std::vector<double> logs_of(std::vector<double> values) {
  for (double& value : values) value = std::log(value);
  return values;
}

std::vector<double> exps_of(std::vector<double> values) {
  for (double& value : values) value = std::exp(value);
  return values;
}

// T = 2, U = 1. Weights blank, label: (0,0) 2, 3   (0,1) 5, -   (1,0) 7, 11   (1,1) 13, -
// Paths: label blank blank 3*5*13 = 195, blank label blank 2*11*13 = 286; sum 481. The blank of
// (1, 0) would land on (2, 0) and cannot go on.
const std::vector<double> kPrimes = logs_of({2, 3, 5, 1, 7, 11, 13, 1});

TEST(Lattice, AlphaAndBetaByHand) {
  const Outcome o =
      WeightedLattice{.T = 2, .U = 1, .weights = kPrimes, .start = {}, .final = {}}.run();
  EXPECT_NEAR(o.costs[0], -std::log(481.0), 1e-14);
  // (2, 0) is reached by two blanks, 14, and leads nowhere.
  EXPECT_TRUE(close(exps_of(o.alpha), std::vector<double>{1, 3, 2, 15 + 22, 14, 481}, 1e-13));
  EXPECT_TRUE(close(exps_of(o.beta), std::vector<double>{481, 65, 11 * 13, 13, 0, 1}, 1e-13));
  EXPECT_TRUE(close(
      o.arc_posterior,
      std::vector<double>{286 / 481.0, 195 / 481.0, 195 / 481.0, 0, 0, 286 / 481.0, 1, 0}, 1e-14));
  EXPECT_TRUE(close(o.occupancy, std::vector<double>{1, 195 / 481.0, 286 / 481.0, 1}, 1e-14));
  std::vector<double> expected = o.arc_posterior;
  for (double& gamma : expected) gamma = 0.0 - gamma;
  EXPECT_TRUE(close(o.arc_scores_gradient, expected, 0.0)) << "d cost / d w = -gamma";
}

TEST(Lattice, MaxTakesTheBestPath) {
  const Outcome o =
      WeightedLattice{
          .T = 2, .U = 1, .weights = kPrimes, .start = {}, .final = {}, .semiring = Semiring::max}
          .run();
  EXPECT_NEAR(o.costs[0], -std::log(286.0), 1e-14);
  EXPECT_TRUE(close(o.arc_posterior, std::vector<double>{1, 0, 0, 0, 0, 1, 1, 0}, 0.0));
  EXPECT_TRUE(close(o.occupancy, std::vector<double>{1, 0, 1, 1}, 0.0));
  EXPECT_TRUE(close(exps_of(o.alpha), std::vector<double>{1, 3, 2, 22, 14, 286}, 1e-13));
}

TEST(Lattice, StartAndFinalScoresReplaceTheDefaults) {
  WeightedLattice lattice{.T = 2,
                          .U = 1,
                          .weights = kPrimes,
                          .start = logs_of({1, 10}),
                          .final = logs_of({100, 1000, 1})};
  // Starts at (0,0): 481 as before, and ends early: label, end at t = 0: 3 * 100; label blank, and
  // blank label, end at t = 1: (15 + 22) * 1000. Starts at (1,0), weight 10: label blank 143, and
  // label, end at t = 1: 11 * 1000.
  const double from_0 = 481 + 300 + 37000;
  const double from_1 = 10 * (143 + 11000);
  const double total = from_0 + from_1;
  const Outcome o = lattice.run();
  EXPECT_NEAR(o.costs[0], -std::log(total), 1e-14);
  EXPECT_TRUE(
      close(o.start_scores_gradient, std::vector<double>{-from_0 / total, -from_1 / total}, 1e-14));
  EXPECT_TRUE(close(
      o.final_scores_gradient,
      std::vector<double>{-300 / total, -(37000 + 110000) / total, -(481 + 1430) / total}, 1e-14));
  EXPECT_NEAR(std::exp(o.alpha[2]), 2 + 10, 1e-13) << "alpha includes the start score";
  EXPECT_NEAR(std::exp(o.beta[3]), 13 + 1000, 1e-12) << "beta includes the final score";
  EXPECT_NEAR(o.occupancy[3], (37 * 1013 + 110 * 1013) / total, 1e-14)
      << "occupancy counts the paths that end there";
}

TEST(Lattice, APathMayHaveNoArc) {
  WeightedLattice lattice{.T = 2,
                          .U = 0,
                          .weights = logs_of({2, 1, 3, 1}),
                          .start = logs_of({5, 7}),
                          .final = logs_of({11, 13, 17})};
  // At t = 0: 5 * 11; 5 * 2 * 13; 5 * 6 * 17. At t = 1: 7 * 13; 7 * 3 * 17.
  const double total = 55 + 130 + 510 + 91 + 357;
  const Outcome o = lattice.run();
  EXPECT_NEAR(o.costs[0], -std::log(total), 1e-14);
  EXPECT_NEAR(o.occupancy[0], (55 + 130 + 510) / total, 1e-14);
}

TEST(Lattice, MaxTiesAreBrokenFromTheEnd) {
  // All weights 0, every start and end open: the earliest end is t = 0; with a label it is reached
  // by the label arc of (0, 0).
  WeightedLattice lattice{.T = 2,
                          .U = 1,
                          .weights = std::vector<double>(8, 0.0),
                          .start = {0, 0},
                          .final = {0, 0, 0},
                          .semiring = Semiring::max};
  EXPECT_TRUE(close(lattice.run().arc_posterior, std::vector<double>{0, 1, 0, 0, 0, 0, 0, 0}, 0.0));
  // The end at t = 1 only: (1, 1) is reached by the blank of (0, 1) and by the label of (1, 0).
  // Blank has the lower index; before it (0, 1) is reached by the label of (0, 0).
  lattice.final = {-kInf, 0, -kInf};
  EXPECT_TRUE(close(lattice.run().arc_posterior, std::vector<double>{0, 1, 1, 0, 0, 0, 0, 0}, 0.0));
  // Without the blank of (0, 1): the label of (1, 0), and a start there goes before the blank of
  // (0, 0).
  lattice.weights[2] = -kInf;
  const Outcome o = lattice.run();
  EXPECT_TRUE(close(o.arc_posterior, std::vector<double>{0, 0, 0, 0, 0, 1, 0, 0}, 0.0));
  EXPECT_TRUE(close(o.start_scores_gradient, std::vector<double>{0, -1}, 0.0));
  EXPECT_TRUE(close(o.final_scores_gradient, std::vector<double>{0, -1, 0}, 0.0));
}

TEST(Lattice, ArcsThatMayNotFinishStayInside) {
  VariantTable table;
  set_name(table, "two ways");
  const Arc stays = {.dt = 1, .may_finish = false};
  const Arc ends = {.dt = 2, .may_finish = true};
  add_arc(table, stays);
  add_arc(table, ends);
  WeightedLattice lattice{.T = 3,
                          .U = 0,
                          .weights = logs_of({2, 3, 5, 7, 11, 13}),
                          .start = {},
                          .final = {},
                          .variant = table};
  // 1 + 2 only; 2 + 1 and 1 + 1 + 1 end with an arc that may not, and 2 from t = 2 passes T.
  const Outcome o = lattice.run();
  EXPECT_NEAR(o.costs[0], -std::log(2.0 * 7), 1e-14);
  EXPECT_EQ(o.arc_weights[4], -kInf);
  EXPECT_EQ(o.arc_weights[5], -kInf);
}

TEST(Lattice, TheBandIsInclusiveAndClipped) {
  DenseBatch batch = noise_batch(rnnt(position(-1)), 1, 2, 1, 3);
  const Outcome open = batch.run();
  batch.band = {-7, 9, 0, 1};
  EXPECT_TRUE(same_bits(batch.run().costs, open.costs)) << "clipped to [0, U]";
  batch.band = {0, 0, 0, 1};  // (0, 1) is forbidden: only blank, label, blank is left
  Outcome o = batch.run();
  EXPECT_NEAR(o.costs[0], -(open.arc_weights[0] + open.arc_weights[5] + open.arc_weights[6]),
              1e-14);
  EXPECT_EQ(o.arc_weights[1], -kInf) << "no arc into a forbidden node";
  EXPECT_EQ(o.arc_weights[2], -kInf) << "no arc out of a forbidden node";
  EXPECT_EQ(o.alpha[1], -kInf);
  batch.band = {0, 1, 1, 0};  // first > last: nothing at t = 1
  o = batch.run();
  EXPECT_EQ(o.costs[0], kInf);
  EXPECT_TRUE(close(o.logits_gradient, std::vector<double>(o.logits_gradient.size(), 0.0), 0.0));
}

TEST(Lattice, TheBandForbidsStartsAndEnds) {
  DenseBatch batch = noise_batch(rnnt(position(-1)), 1, 2, 0, 3);
  batch.start_scores = {0.0, 0.0};
  batch.final_scores = {0.0, 0.0, 0.0};
  batch.band = {1, 1, 0, 0};  // nothing of U = 0 at t = 0
  const Outcome o = batch.run();
  // Start at t = 1: end there, or take the blank to t = 2, which the band cannot forbid.
  EXPECT_NEAR(o.costs[0], -std::log(1 + std::exp(o.arc_weights[2])), 1e-14);
  EXPECT_EQ(o.start_scores_gradient[0], 0.0);
  EXPECT_EQ(o.final_scores_gradient[0], 0.0);
  EXPECT_EQ(o.alpha[0], -kInf);
  EXPECT_EQ(o.beta[0], -kInf);
  batch.start_scores = {kNaN, 0.0};
  EXPECT_EQ(batch.run().costs[0], o.costs[0]) << "a start that the band forbids is not read";
  batch.start_scores = {};
  EXPECT_EQ(batch.run().costs[0], kInf) << "the default start is at t = 0";
}

TEST(Lattice, ArcWeightsTakeBandAndArcScoresToo) {
  DenseBatch batch = noise_batch(rnnt(position(-1)), 2, 4, 2, 4);
  batch.frame_lengths = {4, 3};
  batch.target_lengths = {2, 1};
  DenseBatch plain = batch;
  std::vector<double> weights = plain.run().arc_weights;
  batch.arc_scores = noise(2 * 4 * 3 * 2, 4);
  batch.arc_scores[7] = -kInf;
  batch.band = {0, 1, 0, 2, 1, 2, 0, 2, 0, 1, 0, 0, 0, 2, 9, 9};
  const Outcome expected = batch.run();
  LossRequest request = batch.request();
  request.source = ArcWeightSource{DenseBatch::real(weights, {2, 4, 3, 2})};
  request.targets = {};
  std::vector<double> costs, gradient, scores_gradient;
  LossResult result;
  result.costs = DenseBatch::make(costs, {2});
  result.arc_weights_gradient = DenseBatch::make(gradient, {2, 4, 3, 2});
  result.arc_scores_gradient = DenseBatch::make(scores_gradient, {2, 4, 3, 2});
  run_reference(request, result);
  EXPECT_TRUE(close(costs, expected.costs, 1e-14));
  EXPECT_TRUE(close(gradient, expected.arc_scores_gradient, 1e-14));
  EXPECT_TRUE(close(scores_gradient, expected.arc_scores_gradient, 1e-14));
}

TEST(Lattice, AlphaAndBetaOfPaddingAreMinusInfinity) {
  DenseBatch batch = noise_batch(rnnt(position(-1)), 1, 3, 2, 3);
  batch.frame_lengths = {1};
  batch.target_lengths = {1};
  const Outcome o = batch.run();
  for (std::int64_t t = 0; t <= 3; ++t) {
    for (std::int64_t u = 0; u <= 2; ++u) {
      if (t <= 1 && u <= 1) continue;
      EXPECT_EQ(o.alpha[std::size_t(t * 3 + u)], -kInf);
      EXPECT_EQ(o.beta[std::size_t(t * 3 + u)], -kInf);
      if (t == 3) continue;
      EXPECT_EQ(o.occupancy[std::size_t(t * 3 + u)], 0.0);
    }
  }
}

TEST(Lattice, ALongLatticeKeepsItsDigits) {
  DenseBatch batch = noise_batch(rnnt(position(-1)), 1, 1500, 400, 3);
  const Outcome o = batch.run();
  const std::int64_t U = 400, T = 1500;
  EXPECT_NEAR(o.alpha[std::size_t(T * (U + 1) + U)], o.beta[0], 1e-11 * o.costs[0]);
  double worst_row = 0.0;
  for (std::size_t i = 0; i < o.logits_gradient.size(); i += 3) {
    const double row = o.logits_gradient[i] + o.logits_gradient[i + 1] + o.logits_gradient[i + 2];
    worst_row = std::max(worst_row, std::abs(row));
  }
  EXPECT_LE(worst_row, 1e-14) << "gradient rows of a softmax sum to 0";
  // Each arc of RNN-T raises t + u by 1: the posteriors of every anti-diagonal sum to 1.
  double worst_mass = 0.0;
  for (std::int64_t n = 0; n < T + U; ++n) {
    double mass = 0.0;
    for (std::int64_t u = std::max<std::int64_t>(0, n - T + 1); u <= std::min(U, n); ++u) {
      const auto i = static_cast<std::size_t>(((n - u) * (U + 1) + u) * 2);
      mass += o.arc_posterior[i] + o.arc_posterior[i + 1];
    }
    worst_mass = std::max(worst_mass, std::abs(mass - 1.0));
  }
  EXPECT_LE(worst_mass, 1e-10);
}

}  // namespace
}  // namespace transducer::testing
