// SPDX-License-Identifier: Apache-2.0
//
// The stages apart: arc weights out, the lattice on arc weights in, and the derivative of scores.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reference/variants/all.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/fixture.hpp"
#include "tests/support/messages.hpp"
#include "tests/support/noise.hpp"

namespace transducer::testing {
namespace {

DenseBatch batch_of(const NamedVariant& variant) {
  DenseBatch batch = noise_batch(make_variant(variant), 2, 4, 2, 7);
  batch.frame_lengths = {4, 3};
  batch.target_lengths = {2, 1};
  batch.targets.assign(4, 1);
  batch.arc_scores = noise(2 * 4 * 3 * batch.A(), 21);
  batch.arc_scores[3] = -kInf;
  return batch;
}

std::vector<double> weights_of(DenseBatch& batch) {
  std::vector<double> weights;
  LossResult result;
  result.arc_weights = DenseBatch::make(weights, {batch.B, batch.T, batch.U + 1, batch.A()});
  run_reference(batch.request(), result);
  return weights;
}

TEST(Scores, TheLatticeOfTheWeightsIsTheLoss) {
  for (const NamedVariant& variant : named_variants()) {
    DenseBatch batch = batch_of(variant);
    const Outcome dense = batch.run();
    std::vector<double> weights = weights_of(batch);
    LossRequest request = batch.request();
    request.arc_scores = {};
    request.targets = {};
    request.source =
        ArcWeightSource{DenseBatch::real(weights, {batch.B, batch.T, batch.U + 1, batch.A()})};
    std::vector<double> costs;
    std::vector<double> gradient;
    LossResult result;
    result.costs = DenseBatch::make(costs, {batch.B});
    result.arc_weights_gradient =
        DenseBatch::make(gradient, {batch.B, batch.T, batch.U + 1, batch.A()});
    run_reference(request, result);
    EXPECT_EQ(bit_difference("costs", costs, dense.costs), "") << variant.name;
    EXPECT_EQ(difference("gradient", gradient, dense.arc_scores_gradient, 0.0), "") << variant.name;
  }
}

/// Backward of scores for the incoming gradient `flow`.
struct ScoresGradient {
  std::vector<double> logits, arc_scores;
};

ScoresGradient scores_backward(DenseBatch& batch, std::vector<double>& flow) {
  ScoresGradient out;
  LossResult result;
  result.logits_gradient = DenseBatch::make(out.logits, {batch.B, batch.T, batch.U + 1, batch.K});
  result.arc_scores_gradient =
      DenseBatch::make(out.arc_scores, {batch.B, batch.T, batch.U + 1, batch.A()});
  const LossRequest request = batch.request();
  ScratchBuffer scratch(reference::plan_workspace(shape_of(request, result), {}));
  reference::scores_backward(request,
                             DenseBatch::real(flow, {batch.B, batch.T, batch.U + 1, batch.A()}),
                             result, {}, scratch.workspace());
  return out;
}

TEST(Scores, BackwardIsTheDifferenceQuotientOfTheWeights) {
  for (const NamedVariant& variant : named_variants()) {
    DenseBatch batch = batch_of(variant);
    std::vector<double> flow = noise(static_cast<std::int64_t>(batch.arc_scores.size()), 22);
    const ScoresGradient got = scores_backward(batch, flow);
    const auto value = [&] {
      double sum = 0.0;
      const std::vector<double> weights = weights_of(batch);
      for (std::size_t i = 0; i < weights.size(); ++i) {
        if (weights[i] != -kInf) sum += flow[i] * weights[i];
      }
      return sum;
    };
    const auto quotient = [&](std::vector<double>& values) {
      std::vector<double> gradient;
      for (double& x : values) {
        const double kept = x;
        x = kept + 1e-4;
        const double up = value();
        x = kept - 1e-4;
        gradient.push_back((up - value()) / 2e-4);
        x = kept;
      }
      return gradient;
    };
    EXPECT_EQ(difference("logits", got.logits, quotient(batch.logits), 1e-7), "") << variant.name;
    EXPECT_EQ(difference("arc scores", got.arc_scores, quotient(batch.arc_scores), 1e-7), "")
        << variant.name;
  }
}

TEST(Scores, BackwardAppliesGradientScalesAndNeitherClampsNorReduces) {
  DenseBatch batch = batch_of(find_variant("rnnt"));
  std::vector<double> flow(batch.arc_scores.size(), 0.0);
  flow[1] = 3.0;  // the label arc out of (0, 0)
  const ScoresGradient plain = scores_backward(batch, flow);
  batch.variant = with_fastemit(batch.variant, 0.5);
  batch.clamp = 0.01;
  batch.reduction = Reduction::mean;
  const ScoresGradient scaled = scores_backward(batch, flow);
  for (std::size_t i = 0; i < plain.logits.size(); ++i) {
    EXPECT_NEAR(scaled.logits[i], 1.5 * plain.logits[i], 1e-15);
  }
  EXPECT_GT(std::abs(plain.logits[1]), 1.0);
  EXPECT_EQ(scaled.arc_scores[1], 3.0);
}

TEST(Scores, BackwardOfTheLossIsTheChainOfTheStages) {
  for (const NamedVariant& variant : named_variants()) {
    DenseBatch batch = batch_of(variant);
    const Outcome whole = batch.run();
    std::vector<double> flow = whole.arc_scores_gradient;  // -gamma
    EXPECT_EQ(
        difference("logits", scores_backward(batch, flow).logits, whole.logits_gradient, 1e-15), "")
        << variant.name;
  }
}

TEST(Scores, BackwardChecksTheShapeOfWhatComesIn) {
  DenseBatch batch = batch_of(find_variant("rnnt"));
  std::vector<double> flow(100);
  const LossRequest request = batch.request();
  const LossResult result;
  ScratchBuffer scratch(reference::plan_workspace(shape_of(request, result), {}));
  EXPECT_TRUE(throws(
      [&] {
        reference::scores_backward(request, DenseBatch::real(flow, {2, 4, 3, 3}), result, {},
                                   scratch.workspace());
      },
      "^test: the gradient of the arc weights has shape \\[2, 4, 3, 3\\], expected \\[2, 4, 3, "
      "2\\]"));
}

/// -inf weights that the caller made forbid an arc; NaN on no path is not read.
TEST(Scores, ArcWeightsOfTheCallerMayForbidArcs) {
  std::vector<double> weights(2 * 2 * 2);  // T = 2, U = 1, arcs blank and label
  const auto at = [&](std::size_t t, std::size_t u, std::size_t a) -> double& {
    return weights[(t * 2 + u) * 2 + a];
  };
  at(0, 0, 0) = std::log(0.5);  // blank
  at(0, 0, 1) = -kInf;          // no label at t = 0
  at(0, 1, 0) = kNaN;           // so (0, 1) is on no path
  at(0, 1, 1) = kNaN;
  at(1, 0, 0) = kNaN;  // to (2, 0): leads nowhere
  at(1, 0, 1) = std::log(0.25);
  at(1, 1, 0) = std::log(0.125);
  at(1, 1, 1) = kNaN;  // no label left
  std::vector<std::int64_t> frames{2};
  std::vector<std::int64_t> labels{1};
  LossRequest request;
  request.source = ArcWeightSource{DenseBatch::real(weights, {1, 2, 2, 2})};
  request.variant = rnnt(position(0));
  request.frame_lengths = DenseBatch::index(frames, {1});
  request.target_lengths = DenseBatch::index(labels, {1});
  std::vector<double> costs;
  std::vector<double> gradient;
  LossResult result;
  result.costs = DenseBatch::make(costs, {1});
  result.arc_weights_gradient = DenseBatch::make(gradient, {1, 2, 2, 2});
  run_reference(request, result);
  EXPECT_NEAR(costs[0], std::log(64.0), 1e-14);
  EXPECT_EQ(difference("gradient", gradient, std::vector<double>{-1, 0, 0, 0, 0, -1, -1, 0}, 1e-15),
            "");
}

}  // namespace
}  // namespace transducer::testing
