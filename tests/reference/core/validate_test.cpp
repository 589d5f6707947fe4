// SPDX-License-Identifier: Apache-2.0
//
// Every rule of validate(): that it fires, with its message, and that the nearest legal value
// passes. Rules of labels, lengths and outputs are in validate_values_test.cpp.
#include "reference/core/validate.hpp"

#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/messages.hpp"
#include "tests/support/requests.hpp"

namespace transducer::testing {
namespace {

TEST(Validate, LegalRequestsPassAndTellTheirSizes) {
  DenseRequest dense;
  const ValidRequest valid = dense.validated();
  EXPECT_EQ(valid.shape.batch, 2);
  EXPECT_EQ(valid.shape.frames, 3);
  EXPECT_EQ(valid.shape.labels, 2);
  EXPECT_EQ(valid.shape.columns, 5);
  EXPECT_EQ(valid.shape.hidden, 0);
  EXPECT_EQ(valid.shape.arcs, 2);
  EXPECT_EQ(valid.shape.groups, 1);
  EXPECT_FALSE(valid.shape.gradient);
  EXPECT_FALSE(valid.from_arc_weights);
  EXPECT_EQ(valid.table.groups[0].end, position(5));  // bound

  JointRequest joint;
  EXPECT_EQ(joint.validated().shape.hidden, 4);
  EXPECT_EQ(joint.validated().shape.columns, 5);
  ArcWeightRequest weights;
  EXPECT_TRUE(weights.validated().from_arc_weights);
  EXPECT_EQ(weights.validated().shape.labels, 2);
  EXPECT_EQ(weights.validated().table, weights.request.variant);  // not bound
}

TEST(Validate, Logits) {
  DenseRequest r;
  r.dense().logits = {};
  EXPECT_TRUE(r.refused("^ft.loss: logits is missing, expected an array \\[B, T, U \\+ 1, K\\]"));
  r.dense().logits = r.zeros({2, 3, 3});
  EXPECT_TRUE(r.refused("^ft.loss: logits has shape \\[2, 3, 3\\], expected 4 axes"));
  r.dense().logits = r.zeros({2, 3, 2, 5});
  EXPECT_TRUE(r.refused(
      "^ft.loss: logits has shape \\[2, 3, 2, 5\\], expected \\[2, 3, 3, 5\\] because targets has "
      "U = 2 columns and the joint needs U \\+ 1. Did the prediction network get its start"));
  r.dense().logits = r.zeros({2, 3, 3, 0});
  EXPECT_TRUE(r.refused("^ft.loss: logits has shape .* expected at least one column"));
  r.dense().logits = r.integers({2, 3, 3, 5});
  EXPECT_TRUE(r.refused("^ft.loss: logits has dtype int64, expected float64, float32, bfloat16"));
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    r.dense().logits = r.zeros({2, 3, 3, 5}, dtype);
    EXPECT_TRUE(r.passes()) << dtype_name(dtype);
    EXPECT_EQ(r.validated().shape.dtype, dtype);
  }
}

TEST(Validate, Targets) {
  DenseRequest r;
  r.request.targets = {};
  EXPECT_TRUE(r.refused("^ft.loss: targets is missing, expected an array \\[B, U\\]"));
  r.request.targets = r.integers({2});
  EXPECT_TRUE(r.refused("^ft.loss: targets has shape \\[2\\], expected 2 axes \\[B, U\\]"));
  r.request.targets = r.integers({3, 2});
  EXPECT_TRUE(
      r.refused("^ft.loss: targets has shape \\[3, 2\\], expected \\[2, 2\\] because the "
                "batch has B = 2 utterances"));
  r.request.targets = r.zeros({2, 2});
  EXPECT_TRUE(r.refused("^ft.loss: targets has dtype float64, expected int32 or int64"));
  r.request.targets = r.integers({2, 2}, DType::int32);
  EXPECT_TRUE(r.passes());
}

TEST(Validate, Lengths) {
  DenseRequest r;
  r.request.frame_lengths = {};
  EXPECT_TRUE(r.refused("^ft.loss: logit_lengths is missing, expected an array \\[B\\]"));
  r.request.frame_lengths = r.integers({3});
  EXPECT_TRUE(r.refused("^ft.loss: logit_lengths has shape \\[3\\], expected \\[2\\] because the"));
  r.request.frame_lengths = r.integers({2, 1});
  EXPECT_TRUE(r.refused("^ft.loss: logit_lengths has shape \\[2, 1\\], expected 1 axes \\[B\\]"));
  r.request.frame_lengths = r.zeros({2});
  EXPECT_TRUE(r.refused("^ft.loss: logit_lengths has dtype float64, expected int32 or int64"));
  r.request.frame_lengths = r.integers({2}, DType::int32);
  EXPECT_TRUE(r.passes());
  r.request.target_lengths = {};
  EXPECT_TRUE(r.refused("^ft.loss: target_lengths is missing"));
  r.request.target_lengths = r.integers({1});
  EXPECT_TRUE(r.refused("^ft.loss: target_lengths has shape \\[1\\], expected \\[2\\]"));
  r.request.target_lengths = r.zeros({2});
  EXPECT_TRUE(r.refused("^ft.loss: target_lengths has dtype float64"));
  JointRequest joint;
  joint.request.frame_lengths = {};
  EXPECT_TRUE(joint.refused("^ft.loss: encoder_lengths is missing"));
}

TEST(Validate, JointInputs) {
  JointRequest r;
  const JointSource good = r.joint();
  const auto refuses = [&](TensorRef JointSource::* member, TensorRef bad, const char* pattern) {
    r.joint() = good;
    r.joint().*member = bad;
    const auto outcome = r.refused(std::string("^ft.loss: ") + pattern);
    r.joint() = good;
    return outcome;
  };
  EXPECT_TRUE(refuses(&JointSource::encoder, {}, "encoder is missing"));
  EXPECT_TRUE(refuses(&JointSource::encoder, r.zeros({2, 3}), "encoder has shape \\[2, 3\\], exp"));
  EXPECT_TRUE(refuses(&JointSource::encoder, r.integers({2, 3, 4}), "encoder has dtype int64"));
  EXPECT_TRUE(refuses(&JointSource::predictor, {}, "predictor is missing"));
  EXPECT_TRUE(refuses(&JointSource::predictor, r.integers({2, 3, 4}), "predictor has dtype int64"));
  EXPECT_TRUE(refuses(&JointSource::predictor, r.zeros({2, 2, 4}),
                      "predictor has shape \\[2, 2, 4\\], expected \\[2, 3, 4\\] because targets "
                      "has U = 2 columns and the joint needs U \\+ 1. Did the prediction"));
  EXPECT_TRUE(refuses(&JointSource::predictor, r.zeros({2, 3, 6}),
                      "predictor has shape \\[2, 3, 6\\], expected \\[2, 3, 4\\] because encoder "
                      "has shape \\[2, 3, 4\\]"));
  EXPECT_TRUE(refuses(&JointSource::weight, {}, "weight is missing"));
  EXPECT_TRUE(refuses(&JointSource::weight, r.integers({5, 4}), "weight has dtype int64"));
  EXPECT_TRUE(refuses(&JointSource::weight, r.zeros({5, 3}),
                      "weight has shape \\[5, 3\\], expected \\[5, 4\\] because encoder"));
  EXPECT_TRUE(refuses(&JointSource::weight, r.zeros({0, 4}), "weight .*expected at least one row"));
  EXPECT_TRUE(refuses(&JointSource::bias, r.zeros({4}),
                      "bias has shape \\[4\\], expected \\[5\\] because weight has K = 5 rows"));
  EXPECT_TRUE(refuses(&JointSource::bias, r.integers({5}), "bias has dtype int64"));
  EXPECT_TRUE(refuses(&JointSource::predictor_mask, r.zeros({2, 2}),
                      "predictor_mask has shape \\[2, 2\\], expected \\[2, 3\\]"));
  EXPECT_TRUE(
      refuses(&JointSource::predictor_mask, r.integers({2, 3}), "predictor_mask has dtype"));
  EXPECT_TRUE(refuses(&JointSource::utterance_ids, r.integers({3}),
                      "utterance_ids has shape \\[3\\], expected \\[2\\]"));
  EXPECT_TRUE(refuses(&JointSource::utterance_ids, r.zeros({2}), "utterance_ids has dtype float"));
  r.joint().bias = r.zeros({5});
  r.joint().predictor_mask = r.zeros({2, 3}, DType::boolean);
  r.joint().utterance_ids = r.integers({2}, DType::int32);
  EXPECT_TRUE(r.passes());
  r.joint().predictor_mask = r.zeros({2, 3}, DType::float32);
  EXPECT_TRUE(r.passes());
}

TEST(Validate, DropoutIsAProbabilityBelowOne) {
  JointRequest r;
  for (const double bad : {-0.1, 1.0, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    r.joint().dropout = bad;
    EXPECT_TRUE(r.refused("^ft.loss: dropout is .*expected a probability from 0 up to")) << bad;
  }
  for (const double good : {0.0, 0.5, 0.999}) {
    r.joint().dropout = good;
    EXPECT_TRUE(r.passes()) << good;
  }
}

TEST(Validate, ArcWeights) {
  ArcWeightRequest r;
  r.weights().arc_weights = {};
  EXPECT_TRUE(r.refused("^ft.loss: arc_weights is missing"));
  r.weights().arc_weights = r.zeros({2, 3, 3});
  EXPECT_TRUE(r.refused("^ft.loss: arc_weights has shape \\[2, 3, 3\\], expected 4 axes"));
  r.weights().arc_weights = r.integers({2, 3, 3, 2});
  EXPECT_TRUE(r.refused("^ft.loss: arc_weights has dtype int64"));
  r.weights().arc_weights = r.zeros({2, 3, 0, 2});
  EXPECT_TRUE(r.refused("^ft.loss: arc_weights .* at least one row on axis 2"));
  r.weights().arc_weights = r.zeros({2, 3, 3, 3});
  EXPECT_TRUE(
      r.refused("^ft.loss: arc_weights has shape \\[2, 3, 3, 3\\], expected 2 entries on "
                "the last axis because variant rnnt has that many arcs"));
  r.weights().arc_weights = r.zeros({2, 3, 1, 2});  // U = 0
  r.request.target_lengths = r.integers({2});
  EXPECT_TRUE(r.passes());
  r.request.variant.num_arcs = 0;
  r.weights().arc_weights = r.zeros({2, 3, 3, 0});
  EXPECT_TRUE(r.refused("^variant rnnt: 0 arcs"));
}

TEST(Validate, VariantsAreBoundToTheColumns) {
  DenseRequest r;
  r.request.variant = rnnt(position(5));
  EXPECT_TRUE(r.refused("^ft.loss: variant rnnt: arc 0 reads column 5, .* K = 5"));
  r.request.variant = rnnt(position(4));
  EXPECT_TRUE(r.passes());
}

TEST(Validate, Extras) {
  DenseRequest r;
  r.request.arc_scores = r.zeros({2, 3, 3, 3});
  EXPECT_TRUE(
      r.refused("^ft.loss: arc_scores has shape \\[2, 3, 3, 3\\], expected one that "
                "broadcasts to \\[B, T, U \\+ 1, A\\] = \\[2, 3, 3, 2\\]"));
  r.request.arc_scores = r.integers({2});
  EXPECT_TRUE(r.refused("^ft.loss: arc_scores has dtype int64"));
  r.request.arc_scores = r.zeros({3, 1, 2});
  EXPECT_TRUE(r.passes());
  EXPECT_EQ(r.validated().arc_scores.strides[0], 0);

  r = DenseRequest();
  r.request.band = r.integers({2, 3});
  EXPECT_TRUE(r.refused("^ft.loss: band has shape \\[2, 3\\], expected \\[2, 3, 2\\]"));
  r.request.band = r.zeros({2, 3, 2});
  EXPECT_TRUE(r.refused("^ft.loss: band has dtype float64, expected int32 or int64"));
  r.request.band = r.integers({2, 3, 2}, DType::int32);
  EXPECT_TRUE(r.passes());

  r = DenseRequest();
  r.request.start_scores = r.zeros({2, 4});
  EXPECT_TRUE(r.refused("^ft.loss: start_scores has shape \\[2, 4\\], expected \\[2, 3\\]"));
  r.request.start_scores = r.integers({2, 3});
  EXPECT_TRUE(r.refused("^ft.loss: start_scores has dtype int64"));
  r.request.start_scores = r.zeros({2, 3});
  EXPECT_TRUE(r.passes());
  r.request.final_scores = r.zeros({2, 3});
  EXPECT_TRUE(
      r.refused("^ft.loss: final_scores has shape \\[2, 3\\], expected \\[2, 4\\] .*T \\+"));
  r.request.final_scores = r.integers({2, 4});
  EXPECT_TRUE(r.refused("^ft.loss: final_scores has dtype int64"));
  r.request.final_scores = r.zeros({2, 4});
  EXPECT_TRUE(r.passes());
}

TEST(Validate, UpstreamFollowsTheReduction) {
  DenseRequest r;
  r.request.reduction = Reduction::none;
  r.request.upstream = r.zeros({});
  EXPECT_TRUE(r.refused("^ft.loss: upstream has shape \\[\\], expected \\[2\\] because reduction"));
  r.request.upstream = r.zeros({2});
  EXPECT_TRUE(r.passes());
  r.request.reduction = Reduction::sum;
  EXPECT_TRUE(r.refused("^ft.loss: upstream has shape \\[2\\], expected \\[\\] because the reduc"));
  r.request.upstream = r.integers({});
  EXPECT_TRUE(r.refused("^ft.loss: upstream has dtype int64"));
  r.request.upstream = r.zeros({});
  EXPECT_TRUE(r.passes());
}

TEST(Validate, Numbers) {
  DenseRequest r;
  for (const double bad :
       {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    r.request.clamp = bad;
    EXPECT_TRUE(r.refused("^ft.loss: clamp is .*expected 0 \\(off\\) or a positive number"));
  }
  r.request.clamp = 0.5;
  EXPECT_TRUE(r.passes());
  r.request.skip_mass = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(r.refused("^ft.loss: skip_mass is NaN"));
  r.request.skip_mass = -1.0;
  r.options.threads = -1;
  EXPECT_TRUE(r.refused("^ft.loss: threads is -1, expected 0"));
  r.options.threads = 3;
  EXPECT_TRUE(r.passes());
}

}  // namespace
}  // namespace transducer::testing
