// SPDX-License-Identifier: Apache-2.0
//
// FastEmit, delay penalty and sigma by hand, on the lattices of the variants' own tests (T = 2, U =
// 1, label 1). A path's share is multiplied by e^-sigma per scored arc, and by e^(+-lambda/2) for a
// label at t = 0 or 1, since (T-1)/2 - t is 1/2 or -1/2.
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/literals.hpp"

namespace transducer::testing {
namespace {

using Nodes = std::vector<std::vector<double>>;

const Nodes kThree = {{1, 2, 1}, {1, 1, 2}, {2, 1, 2}, {3, 1, 4}};
const Nodes kHat = {{1, 3, 1}, {1, 1, 3}, {2, 2, 3}, {1, 1, 1}};
const Nodes kBypass = {{1, 2, 3, 2}, {1, 1, 2, 4}, {2, 1, 1, 1}, {1, 1, 1, 1}};
const Nodes kBlanks = {{1, 2, 3, 2}, {1, 1, 4, 2}, {2, 1, 1, 1}, {3, 1, 2, 2}};
const Nodes kDurations = {
    {1, 2, 1, 1, 2, 1}, {1, 1, 2, 3, 1, 4}, {2, 1, 2, 1, 1, 3}, {3, 1, 4, 1, 1, 2}};

struct KnobCase {
  std::string variant;
  ParameterValues arguments;
  Nodes nodes;
  double halved;   ///< likelihood with sigma = log 2: each scored arc counts 1/2
  double delayed;  ///< likelihood with delay_penalty = log 4: labels at t = 0 count 2, at t = 1 1/2
};

const double kHalf = std::log(0.5);

const std::vector<KnobCase> kCases = {
    // 5/40 + 1/40, three arcs each
    {"rnnt", {}, kThree, 6.0 / 40 / 8, (5 * 2 + 1 / 2.0) / 40},
    // 5/20 + 1/20, two arcs each
    {"monotonic", {}, kThree, 6.0 / 20 / 4, (5 * 2 + 1 / 2.0) / 20},
    // 5/320 of three arcs, 40/320 of two, 4/320 of three; the first two emit at t = 0
    {"multi_blank",
     {{"durations", std::vector<std::int64_t>{2}}},
     kBlanks,
     (5 / 8.0 + 40 / 4.0 + 4 / 8.0) / 320,
     (45 * 2 + 4 / 2.0) / 320},
    // 25 of three arcs, 600 and 800 of two, 48 of three, / 25600: sigma once an arc, not once a
    // column
    {"tdt",
     {{"durations", std::vector<std::int64_t>{2, 1, 0}}},
     kDurations,
     (25 / 8.0 + 1400 / 4.0 + 48 / 8.0) / 25600,
     (1425 * 2 + 48 / 2.0) / 25600},
    // 9/64 + 2/64, three arcs each, blank and label both scored
    {"hat", {}, kHat, 11.0 / 64 / 8, (9 * 2 + 2 / 2.0) / 64},
    // 5 + 5 (one skipped frame) + 1 + 2 (one skipped frame), / 40: a skipped frame is not scored
    {"star",
     {{"skip_frame_penalty", kHalf}},
     kThree,
     (5 / 8.0 + 5 / 4.0 + 1 / 8.0 + 2 / 4.0) / 40,
     (10 * 2 + 3 / 2.0) / 40},
    // 5 + 5 (skip token) + 2 + 3 (skip token), / 160: a skip token is scored, and it emits
    {"bypass", {{"skip_token_penalty", kHalf}}, kBypass, 15.0 / 160 / 8, (10 * 2 + 5 / 2.0) / 160},
    // 5 + 10 + 2 + 5, / 160: a constant skip token is not scored, but it emits
    {"bypass",
     {{"skip_token_penalty", kHalf}, {"mode", std::string("constant")}},
     kBypass,
     (5 / 8.0 + 10 / 4.0 + 2 / 8.0 + 5 / 4.0) / 160,
     (15 * 2 + 7 / 2.0) / 160},
};

double likelihood_with(const KnobCase& c, const std::string& knob, double value) {
  ParameterValues arguments = c.arguments;
  arguments[knob] = value;
  return likelihood(lattice_of(make_variant(find_variant(c.variant), arguments), 2, 1, c.nodes));
}

TEST(Knobs, SigmaCountsOncePerScoredArc) {
  for (const KnobCase& c : kCases) {
    EXPECT_NEAR(likelihood_with(c, "sigma", std::log(2.0)), c.halved, 1e-14) << c.variant;
  }
}

TEST(Knobs, DelayPenaltyCountsOnEveryArcThatEmits) {
  for (const KnobCase& c : kCases) {
    EXPECT_NEAR(likelihood_with(c, "delay_penalty", std::log(4.0)), c.delayed, 1e-14) << c.variant;
  }
}

/// Gradient of node (0,0) with fastemit = 1/2, and the cost with and without.
std::vector<double> fastemit_gradient(const std::string& variant, ParameterValues arguments,
                                      const Nodes& nodes) {
  const double plain =
      lattice_of(make_variant(find_variant(variant), arguments), 2, 1, nodes).run().costs[0];
  arguments["fastemit"] = 0.5;
  Outcome outcome = lattice_of(make_variant(find_variant(variant), arguments), 2, 1, nodes).run();
  EXPECT_EQ(outcome.costs[0], plain) << variant << ": FastEmit leaves the cost alone";
  outcome.logits_gradient.resize(nodes[0].size());
  return outcome.logits_gradient;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t k = 0; k < got.size(); ++k) EXPECT_NEAR(got[k], expected[k], 1e-14) << k;
}

TEST(Knobs, FastEmitScalesTheLabelOfRnnt) {
  // p (occupancy + gamma / 2) - gamma(blank) - 3/2 gamma(label), gamma(label) = 5/6
  expect_near(fastemit_gradient("rnnt", {}, kThree),
              {17.0 / 48, 17.0 / 24 - 5.0 / 4, 17.0 / 48 - 1.0 / 6});
}

TEST(Knobs, FastEmitScalesBothFactorsOfAHatLabel) {
  // label gradients times 3/2, log(1 - b) included: -(2/11 * 1/2 - 3/2 * 9/11 * 1/2) = 23/44
  expect_near(fastemit_gradient("hat", {}, kHat), {27.0 / 88, -27.0 / 88, 23.0 / 44});
}

TEST(Knobs, FastEmitLeavesDurationsAlone) {
  const double label = 1425.0 / 1473;
  const double blank = 48.0 / 1473;
  expect_near(
      fastemit_gradient("tdt", {{"durations", std::vector<std::int64_t>{2, 1, 0}}}, kDurations),
      {(1 + label / 2) / 4, (1 + label / 2) / 2 - 1.5 * label, (1 + label / 2) / 4 - blank, 1.0 / 4,
       1.0 / 2 - 848.0 / 1473, 1.0 / 4 - 625.0 / 1473});
}

TEST(Knobs, FastEmitLeavesSkipTokensAlone) {
  // label, skip and blank have 1/3 each; only the label's share is scaled.
  expect_near(fastemit_gradient("bypass", {{"skip_token_penalty", kHalf}}, kBypass),
              {7.0 / 48 - 1.0 / 12, 7.0 / 24 - 1.0 / 2, 7.0 / 16 - 1.0 / 4, 7.0 / 24 - 1.0 / 3});
}

}  // namespace
}  // namespace transducer::testing
