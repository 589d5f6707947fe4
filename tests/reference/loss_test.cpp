// SPDX-License-Identifier: Apache-2.0
//
// The reference's entry: closed forms, reductions, empty sizes, infeasible utterances, cancelling.
#include "reference/loss.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "reference/variants/monotonic.hpp"
#include "reference/variants/rnnt.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/fixture.hpp"
#include "tests/support/messages.hpp"
#include "tests/support/noise.hpp"

namespace transducer::testing {
namespace {

double log_choose(double n, double k) {
  return std::lgamma(n + 1.0) - std::lgamma(k + 1.0) - std::lgamma(n - k + 1.0);
}

/// With all logits equal each of the T + U symbols of a path costs log V. A path is an order of T
/// blanks and U labels that ends with a blank.
double uniform_cost(double T, double U, double V) {
  return (T + U) * std::log(V) - log_choose(T + U - 1.0, U);
}

/// Costs alone of a batch whose logits are one number in memory, repeated by zero strides.
double cost_of_equal_logits(std::int64_t T, std::int64_t U, std::int64_t V, double value) {
  std::vector<std::int64_t> targets(static_cast<std::size_t>(U), 1);
  DenseBatch batch = {.T = T, .U = U, .K = V, .variant = rnnt(position(0)), .targets = targets};
  LossRequest request = batch.request();
  TensorRef logits = contiguous_ref(&value, DType::float64, {1, T, U + 1, V});
  for (std::int64_t& stride : logits.strides) stride = 0;
  request.source = DenseSource{logits};
  double cost = 0.0;
  LossResult result;
  result.costs = contiguous_ref(&cost, DType::float64, {1});
  run_reference(request, result);
  return cost;
}

TEST(Loss, EqualLogitsHaveAClosedForm) {
  EXPECT_NEAR(cost_of_equal_logits(1, 0, 7, 0.0), std::log(7.0), 1e-14);
  EXPECT_NEAR(cost_of_equal_logits(2, 1, 3, 5.0), 3 * std::log(3.0) - std::log(2.0), 1e-14);
  EXPECT_NEAR(cost_of_equal_logits(31, 17, 5, -3.0), uniform_cost(31, 17, 5), 1e-11);
  // pytorch/audio issue 3736 prints this shape: 2498 in half precision.
  const double large = cost_of_equal_logits(256, 63, 4096, 0.0);
  EXPECT_NEAR(large, uniform_cost(256, 63, 4096), 1e-9);
  EXPECT_NEAR(large, 2497.956, 5e-4);
}

/// The graph of one frame is a row: u labels, then blank.
TEST(Loss, OneFrameIsAProduct) {
  DenseBatch batch = noise_batch(rnnt(position(0)), 1, 1, 3, 4);
  double expected = 0.0;
  for (int u = 0; u <= 3; ++u) {
    double z = 0.0;
    for (int k = 0; k < 4; ++k)
      z += std::exp(batch.logits[static_cast<std::size_t>(u) * 4 + static_cast<std::size_t>(k)]);
    const std::int64_t read = u < 3 ? batch.targets[static_cast<std::size_t>(u)] : 0;
    expected += std::log(z) - batch.logits[static_cast<std::size_t>(u * 4 + read)];
  }
  EXPECT_NEAR(batch.run().costs[0], expected, 1e-14);
}

TEST(Loss, ReductionsScaleTotalAndGradientAlike) {
  DenseBatch batch = noise_batch(rnnt(position(0)), 3, 4, 2, 5);
  batch.frame_lengths = {4, 2, 3};
  batch.target_lengths = {2, 1, 0};
  const Outcome none = batch.run();
  const double sum = none.costs[0] + none.costs[1] + none.costs[2];
  EXPECT_EQ(none.total, sum);
  const struct {
    Reduction reduction;
    double divisor;
  } cases[] = {{Reduction::sum, 1.0},
               {Reduction::mean, 3.0},
               {Reduction::mean_target, 3.0},
               {Reduction::mean_frame, 9.0}};
  for (const auto& [reduction, divisor] : cases) {
    batch.reduction = reduction;
    batch.upstream = {-0.5};
    const Outcome o = batch.run();
    EXPECT_EQ(difference("costs stay", o.costs, none.costs, 0.0), "");
    EXPECT_NEAR(o.total, sum / divisor, 1e-14);
    std::vector<double> expected = none.logits_gradient;
    for (double& value : expected) value *= -0.5 / divisor;
    EXPECT_EQ(difference("gradient", o.logits_gradient, expected, 1e-15), "");
  }
}

TEST(Loss, MeansOfNothingDivideByOne) {
  DenseBatch batch = noise_batch(rnnt(position(0)), 2, 3, 0, 4);
  batch.reduction = Reduction::mean_target;  // no label at all
  Outcome o = batch.run();
  EXPECT_EQ(o.total, o.costs[0] + o.costs[1]);
  batch = noise_batch(rnnt(position(0)), 2, 0, 0, 4);
  batch.reduction = Reduction::mean_frame;
  EXPECT_EQ(batch.run().total, 0.0);
  for (const Reduction reduction : {Reduction::none, Reduction::sum, Reduction::mean,
                                    Reduction::mean_target, Reduction::mean_frame}) {
    DenseBatch empty = noise_batch(rnnt(position(0)), 0, 3, 2, 4);
    empty.reduction = reduction;
    o = empty.run();
    EXPECT_EQ(o.total, 0.0);
    EXPECT_TRUE(o.costs.empty());
  }
}

TEST(Loss, WithoutFramesOnlyTheEmptyTranscriptHasAPath) {
  DenseBatch batch = noise_batch(rnnt(position(0)), 2, 3, 2, 4);
  batch.frame_lengths = {0, 0};
  batch.target_lengths = {0, 1};
  batch.start_scores = noise(2 * 3, 5);  // not read
  batch.final_scores = noise(2 * 4, 6);
  const Outcome o = batch.run();
  EXPECT_EQ(o.costs[0], 0.0);
  EXPECT_EQ(o.costs[1], kInf);
  for (const auto* gradient :
       {&o.logits_gradient, &o.start_scores_gradient, &o.final_scores_gradient}) {
    for (double value : *gradient) EXPECT_EQ(value, 0.0);
  }
}

TEST(Loss, WithoutLabelsThePathIsAllBlanks) {
  DenseBatch batch = noise_batch(rnnt(position(0)), 1, 3, 0, 2);
  double expected = 0.0;
  for (std::size_t t = 0; t < 3; ++t) {
    expected += std::log1p(std::exp(batch.logits[2 * t + 1] - batch.logits[2 * t]));
  }
  EXPECT_NEAR(batch.run().costs[0], expected, 1e-14);
}

TEST(Loss, ZeroInfinityChangesTheCostAndNotTheDivisor) {
  DenseBatch batch = noise_batch(monotonic(position(0), true), 2, 2, 3, 4);
  batch.target_lengths = {1, 3};  // three labels do not fit in two frames
  batch.reduction = Reduction::mean;
  Outcome o = batch.run();
  EXPECT_EQ(o.costs[1], kInf);
  EXPECT_EQ(o.total, kInf);
  const double with_path = o.costs[0];
  batch.zero_infinity = true;
  o = batch.run();
  EXPECT_EQ(o.costs[0], with_path) << "a cost that is finite stays";
  EXPECT_EQ(o.costs[1], 0.0);
  EXPECT_EQ(o.total, o.costs[0] / 2.0);
}

TEST(Loss, ACallbackCancels) {
  DenseBatch batch = noise_batch(rnnt(position(0)), 3, 4, 2, 5);
  int calls = 0;
  Options options;
  options.cancelled_context = &calls;
  options.cancelled = [](void* context) {
    ++*static_cast<int*>(context);
    return false;
  };
  EXPECT_NO_THROW(batch.run(options));
  EXPECT_GE(calls, 3);  // at least once for each utterance
  options.cancelled = [](void* context) { return --*static_cast<int*>(context) == 0; };
  const int polls = calls;
  for (calls = 1; calls <= polls;) {
    const int at = calls;
    EXPECT_TRUE(throws<Cancelled>([&] { batch.run(options); }, "^test: cancelled by the caller"));
    calls = at + 1;
  }
  calls = polls + 1;
  EXPECT_NO_THROW(batch.run(options));
}

TEST(Loss, ADeviceArrayIsRefusedBeforeItIsRead) {
  DenseBatch batch = noise_batch(rnnt(position(0)), 1, 2, 1, 3);
  batch.start_scores.assign(2, 0.0);
  const LossRequest request = batch.request();
  TensorRef on_device = contiguous_ref(nullptr, DType::float64, {1, 2, 2, 3});
  on_device.device.type = DeviceType::cuda;
  const auto expect_refused = [](const LossRequest& r, const LossResult& result) {
    EXPECT_TRUE(
        throws([&] { run_reference(r, result); }, "^test: the reference reads host memory"));
  };
  LossRequest changed = request;
  changed.frame_lengths.device = on_device.device;
  expect_refused(changed, {});
  changed = request;
  changed.start_scores.device = on_device.device;
  expect_refused(changed, {});
  changed = request;
  changed.source = DenseSource{on_device};
  expect_refused(changed, {});
  LossResult result;
  result.logits_gradient = on_device;
  expect_refused(request, result);
}

/// Rows that sum to 0 say that alpha, beta and the cost still agree after 1,900 steps.
TEST(Loss, LongUtterancesKeepTheirGradient) {
  DenseBatch batch = noise_batch(rnnt(position(0)), 1, 1500, 400, 3);
  std::vector<double> costs;
  std::vector<double> occupancy;
  std::vector<double> gradient;
  LossResult result;
  result.costs = DenseBatch::make(costs, {1});
  result.logits_gradient = DenseBatch::make(gradient, {1, 1500, 401, 3});
  result.occupancy = DenseBatch::make(occupancy, {1, 1500, 401});
  run_reference(batch.request(), result);
  EXPECT_TRUE(std::isfinite(costs[0]));
  double worst = 0.0;
  double mass = 0.0;
  for (std::size_t i = 0; i < gradient.size(); i += 3) {
    worst = std::max(worst, std::abs(gradient[i] + gradient[i + 1] + gradient[i + 2]));
    mass += occupancy[i / 3];
  }
  EXPECT_LE(worst, 1e-14);
  EXPECT_NEAR(mass, 1900.0, 1e-7);  // every path has 1,900 arcs, so 1,900 nodes with t < T
}

}  // namespace
}  // namespace transducer::testing
