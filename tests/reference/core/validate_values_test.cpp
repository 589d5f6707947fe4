// SPDX-License-Identifier: Apache-2.0
//
// Rules of validate() about labels and lengths, and about outputs.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reference/core/validate.hpp"
#include "reference/variants/tdt.hpp"
#include "tests/support/messages.hpp"
#include "tests/support/requests.hpp"

namespace transducer::testing {
namespace {

std::int64_t* integers_of(const TensorRef& tensor) {
  return static_cast<std::int64_t*>(tensor.data);
}

TEST(ValidateValues, LengthsLieWithinTheArrays) {
  DenseRequest r;
  integers_of(r.request.frame_lengths)[1] = 4;
  EXPECT_TRUE(
      r.refused("^ft.loss: logit_lengths\\[1\\] is 4, expected a value from 0 to 3 because "
                "the batch has T = 3 frames. Were the lengths computed before subsampling"));
  integers_of(r.request.frame_lengths)[1] = -1;
  EXPECT_TRUE(r.refused("^ft.loss: logit_lengths\\[1\\] is -1, expected .* T = 3 frames$"));
  integers_of(r.request.frame_lengths)[1] = 0;
  EXPECT_TRUE(r.passes());
  integers_of(r.request.target_lengths)[0] = 3;
  EXPECT_TRUE(
      r.refused("^ft.loss: target_lengths\\[0\\] is 3, expected a value from 0 to 2 because "
                "targets has U = 2 columns"));
  integers_of(r.request.target_lengths)[0] = -7;
  EXPECT_TRUE(r.refused("^ft.loss: target_lengths\\[0\\] is -7"));
  integers_of(r.request.target_lengths)[0] = 0;
  EXPECT_TRUE(r.passes());
}

TEST(ValidateValues, LabelsLieWithinTheVocabulary) {
  DenseRequest r;
  integers_of(r.request.targets)[3] = 5;
  EXPECT_TRUE(
      r.refused("^ft.loss: targets\\[1, 1\\] is 5, expected a label from 0 to 4 because the "
                "vocabulary has V = 5 symbols. Is the padding longer than target_lengths"));
  integers_of(r.request.targets)[3] = -1;
  EXPECT_TRUE(r.refused("^ft.loss: targets\\[1, 1\\] is -1, expected a label from 0 to 4"));
  integers_of(r.request.target_lengths)[1] = 1;  // now it is padding
  EXPECT_TRUE(r.passes());
  integers_of(r.request.target_lengths)[1] = 2;
  integers_of(r.request.targets)[3] = 4;
  EXPECT_TRUE(r.passes());
  r.request.variant = tdt({0, 1}, position(0), false);  // V = 3
  EXPECT_TRUE(
      r.refused("^ft.loss: targets\\[1, 1\\] is 4, expected a label from 0 to 2 .*V = 3 "
                "symbols \\(K = 5 columns less 2 of variant tdt\\)"));
  integers_of(r.request.targets)[3] = 2;
  EXPECT_TRUE(r.passes());
}

TEST(ValidateValues, LabelsWithAnOffsetLieWithinTheColumns) {
  DenseRequest r;
  r.request.variant.arcs[1].columns[0].label_offset = 1;
  integers_of(r.request.targets)[2] = 4;
  EXPECT_TRUE(
      r.refused("^ft.loss: targets\\[1, 0\\] is 4 and arc 1 of variant rnnt reads column "
                "label \\+ 1 = 5, expected a column from 0 to 4"));
  integers_of(r.request.targets)[2] = 3;
  EXPECT_TRUE(r.passes());
  r.request.variant.arcs[1].columns[0].label_offset = -1;
  EXPECT_TRUE(r.refused("^ft.loss: targets\\[0, 0\\] is 0 and arc 1 .* = -1, expected a column"));
}

TEST(ValidateValues, ValuesAreNotReadIfTheCallerSaysSo) {
  DenseRequest r;
  integers_of(r.request.frame_lengths)[0] = 1000;
  integers_of(r.request.targets)[0] = -1000;
  EXPECT_FALSE(r.passes());
  r.options.validate = false;
  EXPECT_TRUE(r.passes());
  r.request.frame_lengths.data = nullptr;  // would crash if read
  r.request.target_lengths.data = nullptr;
  r.request.targets.data = nullptr;
  EXPECT_TRUE(r.passes());
}

TEST(ValidateValues, ArcWeightsNeedNoTargets) {
  ArcWeightRequest r;
  r.request.targets = {};
  EXPECT_TRUE(r.passes());
  integers_of(r.request.target_lengths)[0] = 3;
  EXPECT_TRUE(r.refused("^ft.loss: target_lengths\\[0\\] is 3"));
}

TEST(ValidateValues, OutputShapes) {
  DenseRequest r;
  const auto refuses = [&](TensorRef LossResult::* member, TensorRef bad, const char* pattern) {
    r.result.*member = bad;
    const auto outcome = r.refused(std::string("^ft.loss: ") + pattern);
    r.result.*member = {};
    return outcome;
  };
  EXPECT_TRUE(refuses(&LossResult::costs, r.zeros({3}), "costs has shape \\[3\\], .*\\[2\\]"));
  EXPECT_TRUE(refuses(&LossResult::costs, r.integers({2}), "costs has dtype int64"));
  EXPECT_TRUE(refuses(&LossResult::total, r.zeros({1}), "total has shape \\[1\\], .*\\[\\]"));
  EXPECT_TRUE(refuses(&LossResult::skipped_mass, r.zeros({}), "skipped_mass has shape"));
  EXPECT_TRUE(refuses(&LossResult::alpha, r.zeros({2, 3, 3}), "alpha has .*\\[2, 4, 3\\] because"));
  EXPECT_TRUE(refuses(&LossResult::beta, r.zeros({2, 4, 2}), "beta has .*\\[2, 4, 3\\] because"));
  EXPECT_TRUE(refuses(&LossResult::occupancy, r.zeros({2, 4, 3}), "occupancy .*\\[2, 3, 3\\] bec"));
  EXPECT_TRUE(refuses(&LossResult::arc_weights, r.zeros({2, 3, 3, 3}), "arc_weights .*3, 2\\]"));
  EXPECT_TRUE(refuses(&LossResult::arc_posterior, r.zeros({2, 3, 3}), "arc_posterior has shape"));
  r.result.costs = r.zeros({2}, DType::float32);
  r.result.total = r.zeros({});
  r.result.skipped_mass = r.zeros({2});
  r.result.alpha = r.zeros({2, 4, 3});
  r.result.beta = r.zeros({2, 4, 3}, DType::float16);
  r.result.occupancy = r.zeros({2, 3, 3});
  r.result.arc_weights = r.zeros({2, 3, 3, 2});
  r.result.arc_posterior = r.zeros({2, 3, 3, 2});
  EXPECT_TRUE(r.passes());
  EXPECT_FALSE(r.validated().shape.gradient);
}

TEST(ValidateValues, OutputsAreWritableAndOneAddressPerElement) {
  DenseRequest r;
  r.result.costs = r.zeros({2});
  r.result.costs.read_only = true;
  EXPECT_TRUE(r.refused("^ft.loss: costs is read-only, expected memory that can be written"));
  r.result.costs.read_only = false;
  EXPECT_TRUE(r.passes());
  r.result.costs.strides[0] = 0;
  EXPECT_TRUE(r.refused("^ft.loss: costs has elements that share memory \\(a broadcast array"));
  r.result.costs.strides[0] = -1;
  EXPECT_TRUE(r.passes());
  r.result.alpha = r.zeros({2, 4, 3});
  r.result.alpha.strides[1] = 2;  // rows of 3 elements, 2 apart
  EXPECT_TRUE(r.refused("^ft.loss: alpha has elements that share memory"));
  r.result.alpha.strides[0] = 1;  // the axes in another order
  r.result.alpha.strides[1] = 6;
  r.result.alpha.strides[2] = 2;
  EXPECT_TRUE(r.passes());
}

/// Every order of four axes: the check sorts them by stride.
TEST(ValidateValues, OutputsMayHaveTheirAxesInAnyOrder) {
  std::vector<int> order{0, 1, 2, 3};
  do {
    DenseRequest r;
    r.result.arc_posterior = r.zeros({2, 3, 3, 2});
    std::int64_t stride = 1;
    for (int axis : order) {
      r.result.arc_posterior.strides[axis] = stride;
      stride *= r.result.arc_posterior.extents[axis];
    }
    EXPECT_TRUE(r.passes());
    r.result.arc_posterior.strides[order[3]] -= 1;  // the widest axis now lands on the others
    EXPECT_TRUE(r.refused("arc_posterior has elements that share memory"));
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(ValidateValues, GradientsMatchTheirInputs) {
  DenseRequest r;
  r.result.logits_gradient = r.zeros({2, 3, 3, 5});
  EXPECT_TRUE(r.passes());
  EXPECT_TRUE(r.validated().shape.gradient);
  r.result.logits_gradient = r.zeros({2, 3, 3, 4});
  EXPECT_TRUE(
      r.refused("^ft.loss: the gradient of logits has shape \\[2, 3, 3, 4\\], expected "
                "\\[2, 3, 3, 5\\] because that is the shape of logits"));
  r.result.logits_gradient = r.zeros({2, 3, 3, 5}, DType::float32);
  EXPECT_TRUE(
      r.refused("^ft.loss: the gradient of logits has dtype float32, expected float64 "
                "because a gradient has its input's dtype"));
  r.result.logits_gradient = r.zeros({2, 3, 3, 5});
  r.result.logits_gradient.read_only = true;
  EXPECT_TRUE(r.refused("^ft.loss: the gradient of logits is read-only"));
  r.result.logits_gradient.read_only = false;
  r.result.logits_gradient.strides[0] = 0;
  EXPECT_TRUE(r.refused("^ft.loss: the gradient of logits has elements that share memory"));
  r.result.logits_gradient = {};
  r.result.arc_scores_gradient = r.zeros({2});
  EXPECT_TRUE(
      r.refused("^ft.loss: the gradient of arc_scores is asked for, expected arc_scores to"));
  r.request.arc_scores = r.zeros({2});
  EXPECT_TRUE(r.passes());
  EXPECT_EQ(r.validated().shape.arc_scores, 2);
  EXPECT_EQ(r.validated().arc_scores_gradient.rank, 4);
  r.result.start_scores_gradient = r.zeros({2, 3});
  EXPECT_TRUE(r.refused("^ft.loss: the gradient of start_scores is asked for"));
  r.request.start_scores = r.zeros({2, 3});
  r.result.final_scores_gradient = r.zeros({2, 4});
  EXPECT_TRUE(r.refused("^ft.loss: the gradient of final_scores is asked for"));
  r.request.final_scores = r.zeros({2, 4});
  EXPECT_TRUE(r.passes());
  r.result.encoder_gradient = r.zeros({2, 3, 4});
  EXPECT_TRUE(r.refused("^ft.loss: the gradient of encoder is asked for, expected encoder to be"));
}

TEST(ValidateValues, GradientsOfEachSource) {
  JointRequest joint;
  joint.result.encoder_gradient = joint.zeros({2, 3, 4});
  joint.result.predictor_gradient = joint.zeros({2, 3, 4});
  joint.result.weight_gradient = joint.zeros({5, 4});
  EXPECT_TRUE(joint.passes());
  joint.result.bias_gradient = joint.zeros({5});
  EXPECT_TRUE(joint.refused("^ft.loss: the gradient of bias is asked for, expected bias to be"));
  joint.joint().bias = joint.zeros({5});
  EXPECT_TRUE(joint.passes());
  joint.result.logits_gradient = joint.zeros({2, 3, 3, 5});
  EXPECT_TRUE(joint.refused("^ft.loss: the gradient of logits is asked for"));
  ArcWeightRequest weights;
  weights.result.arc_weights_gradient = weights.zeros({2, 3, 3, 2});
  EXPECT_TRUE(weights.passes());
}

TEST(ValidateValues, AnInPlaceGradientIsExactlyItsInput) {
  DenseRequest r;
  r.result.logits_gradient = r.dense().logits;
  EXPECT_TRUE(r.passes());
  r.dense().logits = r.zeros({3, 3, 3, 5});
  r.dense().logits.extents[0] = 2;
  r.result.logits_gradient = r.dense().logits;
  r.result.logits_gradient.data = static_cast<double*>(r.dense().logits.data) + 45;
  EXPECT_TRUE(
      r.refused("^ft.loss: the gradient of logits shares part of its memory with logits, "
                "expected memory of its own, or exactly the same array"));
  r.result.logits_gradient.data = static_cast<double*>(r.dense().logits.data) + 90;
  r.result.logits_gradient.extents[0] = r.dense().logits.extents[0] = 1;  // side by side: legal
  r.request.targets = r.integers({1, 2});
  r.request.frame_lengths = r.integers({1});
  r.request.target_lengths = r.integers({1});
  EXPECT_TRUE(r.passes());
}

}  // namespace
}  // namespace transducer::testing
