// SPDX-License-Identifier: Apache-2.0
//
// Joint inputs against the dense source: the logits z = W drop(act(E_t + m_u P_u)) + c are made
// here by hand, and their dense gradient is carried back by the chain rule, written out anew.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reference/core/philox.hpp"
#include "reference/source.hpp"
#include "reference/variants/all.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/fixture.hpp"
#include "tests/support/noise.hpp"

namespace transducer::testing {
namespace {

constexpr Activation kActivations[] = {
    Activation::identity, Activation::relu, Activation::leaky_relu, Activation::tanh,
    Activation::sigmoid,  Activation::gelu, Activation::silu};

TEST(Activation, ValuesByHand) {
  using reference::activate;
  EXPECT_EQ(activate(Activation::identity, -1.5), -1.5);
  EXPECT_EQ(activate(Activation::relu, -1.5), 0.0);
  EXPECT_EQ(activate(Activation::relu, 1.5), 1.5);
  EXPECT_EQ(activate(Activation::leaky_relu, -2.0), -0.02);
  EXPECT_EQ(activate(Activation::leaky_relu, 2.0), 2.0);
  EXPECT_NEAR(activate(Activation::tanh, std::log(3.0)), 0.8, 1e-15);
  EXPECT_NEAR(activate(Activation::sigmoid, std::log(3.0)), 0.75, 1e-15);
  EXPECT_NEAR(activate(Activation::silu, std::log(3.0)), 0.75 * std::log(3.0), 1e-15);
  EXPECT_EQ(activate(Activation::gelu, 0.0), 0.0);
  EXPECT_NEAR(activate(Activation::gelu, 1.0), 0.8413447460685429, 1e-15);  // Phi(1)
  EXPECT_EQ(reference::activation_derivative(Activation::relu, 0.0), 0.0);
  EXPECT_EQ(reference::activation_derivative(Activation::leaky_relu, 0.0), 0.01);
  EXPECT_TRUE(std::isnan(activate(Activation::relu, kNaN)));
}

TEST(Activation, DerivativesAreDifferenceQuotients) {
  for (const Activation act : kActivations) {
    for (int step = -16; step <= 16; ++step) {
      const double x = 0.25 * step - 0.0625;  // never on the kink at 0
      const double h = 1e-5;
      const double quotient =
          (reference::activate(act, x + h) - reference::activate(act, x - h)) / (2 * h);
      EXPECT_NEAR(reference::activation_derivative(act, x), quotient, 1e-9) << int(act) << " " << x;
    }
  }
}

/// A joint batch with its dense twin.
struct Joint {
  std::int64_t B = 2, T = 4, U = 2, K = 5, H = 11;
  JointSource source;
  std::vector<double> encoder = noise(B * T * H, 11);
  std::vector<double> predictor = noise(B * (U + 1) * H, 12);
  std::vector<double> weight = noise(K * H, 13);
  std::vector<double> bias = noise(K, 14);
  std::vector<double> mask;       // or empty
  std::vector<std::int64_t> ids;  // or empty
  DenseBatch dense = noise_batch(rnnt(position(0)), B, T, U, K);
  std::vector<double> costs, d_encoder, d_predictor, d_weight, d_bias;  // outputs of run()

  Joint() {
    dense.frame_lengths = {4, 3};
    dense.target_lengths = {1, 2};
  }

  double factor(std::int64_t b, std::int64_t u) const {
    return mask.empty() ? 1.0 : mask[static_cast<std::size_t>(b * (U + 1) + u)];
  }
  double sum(std::int64_t b, std::int64_t t, std::int64_t u, std::int64_t h) const {
    return encoder[static_cast<std::size_t>((b * T + t) * H + h)] +
           factor(b, u) * predictor[static_cast<std::size_t>((b * (U + 1) + u) * H + h)];
  }
  double drop(std::int64_t b, std::int64_t t, std::int64_t u, std::int64_t h) const {
    if (source.dropout == 0.0) return 1.0;
    const std::int64_t id = ids.empty() ? b : ids[static_cast<std::size_t>(b)];
    const bool kept =
        dropout_keep(source.seed, id, static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(u),
                     static_cast<std::uint32_t>(h), source.dropout);
    return kept ? 1.0 / (1.0 - source.dropout) : 0.0;
  }

  /// Calls visit(b, t, u, first logit) for each valid node.
  template <class Visit>
  void for_each_node(Visit&& visit) const {
    for (std::int64_t b = 0; b < B; ++b) {
      for (std::int64_t t = 0; t < dense.frame_lengths[static_cast<std::size_t>(b)]; ++t) {
        for (std::int64_t u = 0; u <= dense.target_lengths[static_cast<std::size_t>(b)]; ++u) {
          visit(b, t, u, static_cast<std::size_t>(((b * T + t) * (U + 1) + u) * K));
        }
      }
    }
  }

  /// The dense outcome on logits made by hand.
  Outcome run_dense() {
    for_each_node([&](std::int64_t b, std::int64_t t, std::int64_t u, std::size_t z) {
      for (std::int64_t k = 0; k < K; ++k) {
        double& logit = dense.logits[z + static_cast<std::size_t>(k)];
        logit = bias[static_cast<std::size_t>(k)];
        for (std::int64_t h = 0; h < H; ++h) {
          logit += weight[static_cast<std::size_t>(k * H + h)] * drop(b, t, u, h) *
                   reference::activate(source.activation, sum(b, t, u, h));
        }
      }
    });
    return dense.run();
  }

  LossRequest request() {
    LossRequest r = dense.request();
    source.encoder = DenseBatch::real(encoder, {B, T, H});
    source.predictor = DenseBatch::real(predictor, {B, U + 1, H});
    source.weight = DenseBatch::real(weight, {K, H});
    source.bias = DenseBatch::real(bias, {K});
    source.predictor_mask = mask.empty() ? TensorRef{} : DenseBatch::real(mask, {B, U + 1});
    source.utterance_ids = ids.empty() ? TensorRef{} : DenseBatch::index(ids, {B});
    r.source = source;
    return r;
  }

  void run() {
    LossResult result;
    result.costs = DenseBatch::make(costs, {B});
    result.encoder_gradient = DenseBatch::make(d_encoder, {B, T, H});
    result.predictor_gradient = DenseBatch::make(d_predictor, {B, U + 1, H});
    result.weight_gradient = DenseBatch::make(d_weight, {K, H});
    result.bias_gradient = DenseBatch::make(d_bias, {K});
    run_reference(request(), result);
  }

  /// Runs both and compares costs and all four gradients; empty if they agree.
  std::string disagreement() {
    run();
    const Outcome o = run_dense();
    std::vector<double> e(encoder.size()), p(predictor.size()), w(weight.size()), c(bias.size());
    for_each_node([&](std::int64_t b, std::int64_t t, std::int64_t u, std::size_t z) {
      for (std::int64_t k = 0; k < K; ++k) {
        const double dz = o.logits_gradient[z + static_cast<std::size_t>(k)];
        c[static_cast<std::size_t>(k)] += dz;
        for (std::int64_t h = 0; h < H; ++h) {
          const auto kh = static_cast<std::size_t>(k * H + h);
          const double x = sum(b, t, u, h);
          w[kh] += dz * drop(b, t, u, h) * reference::activate(source.activation, x);
          const double dx = dz * weight[kh] * drop(b, t, u, h) *
                            reference::activation_derivative(source.activation, x);
          e[static_cast<std::size_t>((b * T + t) * H + h)] += dx;
          p[static_cast<std::size_t>((b * (U + 1) + u) * H + h)] += factor(b, u) * dx;
        }
      }
    });
    return difference("costs", costs, o.costs, 1e-13) +
           difference("gradient of encoder", d_encoder, e, 1e-12) +
           difference("gradient of predictor", d_predictor, p, 1e-12) +
           difference("gradient of weight", d_weight, w, 1e-12) +
           difference("gradient of bias", d_bias, c, 1e-12);
  }
};

TEST(Joint, EqualsTheDenseSourceForEveryActivation) {
  for (const Activation act : kActivations) {
    Joint joint;
    joint.source.activation = act;
    EXPECT_EQ(joint.disagreement(), "") << int(act);
  }
}

TEST(Joint, EqualsTheDenseSourceForEveryVariant) {
  for (const NamedVariant& variant : named_variants()) {
    Joint joint;
    joint.source.activation = Activation::tanh;
    joint.dense.variant = make_variant(variant, {{"fastemit", 0.5}});
    joint.dense.targets.assign(4, 1);
    joint.dense.clamp = 0.05;
    joint.dense.upstream = {2.0, -0.5};
    EXPECT_EQ(joint.disagreement(), "") << variant.name;
  }
}

TEST(Joint, DropoutDropsAndRescalesByTheGeneratorsMask) {
  Joint joint;
  joint.source.dropout = 0.4;
  joint.source.seed = 0x1234567890ABCDEF;
  joint.source.activation = Activation::sigmoid;
  EXPECT_EQ(joint.disagreement(), "");
  const std::vector<double> first = joint.costs;
  joint.source.seed += 1;
  EXPECT_EQ(joint.disagreement(), "");
  EXPECT_NE(joint.costs, first);
}

TEST(Joint, UtteranceIdsMoveTheMaskWithTheUtterance) {
  Joint joint;
  joint.source.dropout = 0.4;
  joint.source.seed = 7;
  joint.run();
  const std::vector<double> by_index = joint.costs;
  joint.ids = {0, 1};
  EXPECT_EQ(joint.disagreement(), "");
  EXPECT_EQ(joint.costs, by_index);
  joint.ids = {std::int64_t{1} << 31, 5};
  EXPECT_EQ(joint.disagreement(), "");
  EXPECT_NE(joint.costs, by_index);
}

TEST(Joint, PredictorMaskMultipliesThePredictor) {
  Joint joint;
  joint.mask = {1.0, 0.0, 1.0, 0.5, 1.0, 0.0};
  EXPECT_EQ(joint.disagreement(), "");
  for (std::int64_t h = 0; h < joint.H; ++h) {  // row (0, 1) was multiplied by 0
    EXPECT_EQ(joint.d_predictor[static_cast<std::size_t>(joint.H + h)], 0.0);
  }
  bool flags[6] = {true, false, true, true, true, false};
  LossRequest request = joint.request();
  std::get<JointSource>(request.source).predictor_mask =
      contiguous_ref(flags, DType::boolean, {2, 3});
  std::vector<double> costs;
  LossResult result;
  result.costs = DenseBatch::make(costs, {2});
  run_reference(request, result);
  joint.mask = {1.0, 0.0, 1.0, 1.0, 1.0, 0.0};
  joint.run();
  EXPECT_EQ(costs, joint.costs);
}

TEST(Joint, WithoutABiasItIsZero) {
  Joint joint;
  joint.bias.assign(5, 0.0);
  joint.run();
  const std::vector<double> expected = joint.costs;
  LossRequest request = joint.request();
  std::get<JointSource>(request.source).bias = {};
  LossResult result;
  std::vector<double> costs;
  result.costs = DenseBatch::make(costs, {2});
  run_reference(request, result);
  EXPECT_EQ(costs, expected);
}

TEST(Joint, PaddingMayHoldNaNAndGetsZero) {
  Joint joint;
  joint.run();
  Joint hostile;
  for (std::int64_t h = 0; h < joint.H; ++h) {
    hostile.encoder[static_cast<std::size_t>((1 * 4 + 3) * joint.H + h)] = kNaN;
    hostile.predictor[static_cast<std::size_t>((0 * 3 + 2) * joint.H + h)] = kInf;
  }
  hostile.run();
  EXPECT_EQ(bit_difference("costs", hostile.costs, joint.costs), "");
  EXPECT_EQ(bit_difference("encoder", hostile.d_encoder, joint.d_encoder), "");
  EXPECT_EQ(bit_difference("predictor", hostile.d_predictor, joint.d_predictor), "");
  EXPECT_EQ(bit_difference("weight", hostile.d_weight, joint.d_weight), "");
  EXPECT_EQ(bit_difference("bias", hostile.d_bias, joint.d_bias), "");
  for (std::int64_t h = 0; h < joint.H; ++h) {
    EXPECT_EQ(hostile.d_encoder[static_cast<std::size_t>((1 * 4 + 3) * joint.H + h)], 0.0);
    EXPECT_EQ(hostile.d_predictor[static_cast<std::size_t>((0 * 3 + 2) * joint.H + h)], 0.0);
  }
}

TEST(Joint, NaNSpoilsItsUtteranceAndTheSharedGradients) {
  Joint joint;
  joint.run();
  Joint poisoned;
  poisoned.encoder[3] = kNaN;  // utterance 0, frame 0
  poisoned.run();
  EXPECT_TRUE(std::isnan(poisoned.costs[0]));
  EXPECT_EQ(poisoned.costs[1], joint.costs[1]);
  const auto encoder_rows = static_cast<std::size_t>(4 * joint.H);
  const auto predictor_rows = static_cast<std::size_t>(3 * joint.H);
  for (std::size_t i = 0; i < encoder_rows; ++i) EXPECT_TRUE(std::isnan(poisoned.d_encoder[i]));
  for (std::size_t i = 0; i < encoder_rows; ++i) {
    EXPECT_EQ(poisoned.d_encoder[encoder_rows + i], joint.d_encoder[encoder_rows + i]);
  }
  for (std::size_t i = 0; i < predictor_rows; ++i) {
    const bool padding = i >= static_cast<std::size_t>(2 * joint.H);  // utterance 0 has one label
    EXPECT_EQ(std::isnan(poisoned.d_predictor[i]), !padding);
    EXPECT_EQ(poisoned.d_predictor[i] == 0.0, padding);
    EXPECT_EQ(poisoned.d_predictor[predictor_rows + i], joint.d_predictor[predictor_rows + i]);
  }
  for (double value : poisoned.d_weight) EXPECT_TRUE(std::isnan(value));
  for (double value : poisoned.d_bias) EXPECT_TRUE(std::isnan(value));
}

TEST(Joint, AnUtteranceWithoutAPathGivesZero) {
  Joint joint;
  joint.dense.variant = monotonic(position(0), true);
  joint.dense.frame_lengths = {1, 1};
  joint.dense.target_lengths = {2, 2};
  joint.run();
  EXPECT_EQ(joint.costs, (std::vector<double>{kInf, kInf}));
  for (const auto* gradient :
       {&joint.d_encoder, &joint.d_predictor, &joint.d_weight, &joint.d_bias}) {
    for (double value : *gradient) EXPECT_EQ(value, 0.0);
  }
}

}  // namespace
}  // namespace transducer::testing
