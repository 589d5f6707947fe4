// SPDX-License-Identifier: Apache-2.0
#include "reference/source.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "reference/core/log_math.hpp"
#include "reference/core/philox.hpp"

namespace transducer::reference {
namespace {

constexpr double kLeakySlope = 0.01;

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

double normal_density(double x) {
  return std::exp(-0.5 * x * x) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
}

std::span<const double> row(std::span<const double> matrix, std::int64_t index, std::size_t width) {
  return matrix.subspan(static_cast<std::size_t>(index) * width, width);
}

std::span<double> row(std::span<double> matrix, std::int64_t index, std::size_t width) {
  return matrix.subspan(static_cast<std::size_t>(index) * width, width);
}

double predictor_factor(const JointSource& source, const Utterance& utterance, std::int64_t u) {
  if (!source.predictor_mask.defined()) return 1.0;
  return read_real(source.predictor_mask, {utterance.batch_index, u});
}

}  // namespace

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::identity:
      return x;
    case Activation::relu:
      return x < 0.0 ? 0.0 : x;  // in this order NaN stays NaN
    case Activation::leaky_relu:
      return x < 0.0 ? kLeakySlope * x : x;
    case Activation::tanh:
      return std::tanh(x);
    case Activation::sigmoid:
      return sigmoid(x);
    case Activation::gelu:
      return x * normal_cdf(x);
    case Activation::silu:
      return x * sigmoid(x);
  }
  return x;
}

double activation_derivative(Activation activation, double x) {
  switch (activation) {
    case Activation::identity:
      return 1.0;
    case Activation::relu:
      return x > 0.0 ? 1.0 : 0.0;
    case Activation::leaky_relu:
      return x > 0.0 ? 1.0 : kLeakySlope;
    case Activation::tanh: {
      const double y = std::tanh(x);
      return 1.0 - y * y;
    }
    case Activation::sigmoid: {
      const double y = sigmoid(x);
      return y * (1.0 - y);
    }
    case Activation::gelu:
      return normal_cdf(x) + x * normal_density(x);
    case Activation::silu: {
      const double y = sigmoid(x);
      return y + x * y * (1.0 - y);
    }
  }
  return 1.0;
}

void load_output_layer(NodeReader& reader) {
  const auto* source = std::get_if<JointSource>(&reader.request->source);
  if (source == nullptr) return;
  const std::size_t width = reader.hidden.size();
  for (std::int64_t k = 0; k < source->weight.extent(0); ++k) {
    read_row(source->weight, {k}, row(reader.weight, k, width));
    reader.bias[static_cast<std::size_t>(k)] =
        source->bias.defined() ? read_real(source->bias, {k}) : 0.0;
  }
}

void NodeReader::read(const Utterance& utterance, std::int64_t t, std::int64_t u) {
  if (const auto* dense = std::get_if<DenseSource>(&request->source)) {
    read_row(dense->logits, {utterance.batch_index, t, u}, logits);
  } else {
    read_joint(std::get<JointSource>(request->source), utterance, t, u);
  }
}

void NodeReader::read_joint(const JointSource& source, const Utterance& utterance, std::int64_t t,
                            std::int64_t u) {
  const std::int64_t b = utterance.batch_index;
  const double factor = predictor_factor(source, utterance, u);
  const std::int64_t id =
      source.utterance_ids.defined() ? read_index(source.utterance_ids, {b}) : b;
  read_row(source.encoder, {b, t}, sum);
  read_row(source.predictor, {b, u}, hidden);  // P_u for now
  for (std::size_t h = 0; h < sum.size(); ++h) {
    sum[h] += factor * hidden[h];
    const bool kept =
        source.dropout == 0.0 ||
        dropout_keep(source.seed, id, static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(u),
                     static_cast<std::uint32_t>(h), source.dropout);
    dropout_factor[h] = kept ? 1.0 / (1.0 - source.dropout) : 0.0;
    // A dropped unit is 0 even where the activation is NaN.
    hidden[h] = kept ? activate(source.activation, sum[h]) * dropout_factor[h] : 0.0;
  }
  for (std::size_t k = 0; k < logits.size(); ++k) {
    const std::span<double> w = row(weight, static_cast<std::int64_t>(k), hidden.size());
    double z = bias[k];
    for (std::size_t h = 0; h < hidden.size(); ++h) z += w[h] * hidden[h];
    logits[k] = z;
  }
}

void add_joint_gradient(const NodeReader& reader, const Utterance& utterance, std::int64_t t,
                        std::int64_t u, std::span<const double> logits_gradient,
                        JointGradientSums& sums) {
  const auto& source = std::get<JointSource>(reader.request->source);
  const std::size_t width = reader.hidden.size();
  const double factor = predictor_factor(source, utterance, u);
  const std::span<double> encoder = row(sums.encoder, t, width);
  const std::span<double> predictor = row(sums.predictor, u, width);
  for (std::size_t k = 0; k < logits_gradient.size(); ++k) {
    const double dz = logits_gradient[k];
    if (dz == 0.0) continue;  // a column that no arc reads may hold anything, NaN included
    const std::span<const double> w =
        row(std::span<const double>(reader.weight), static_cast<std::int64_t>(k), width);
    const std::span<double> dw = row(sums.weight, static_cast<std::int64_t>(k), width);
    sums.bias[k] += dz;
    for (std::size_t h = 0; h < width; ++h) {
      dw[h] += dz * reader.hidden[h];
      if (reader.dropout_factor[h] == 0.0) continue;
      const double dsum = dz * w[h] * reader.dropout_factor[h] *
                          activation_derivative(source.activation, reader.sum[h]);
      encoder[h] += dsum;
      predictor[h] += factor * dsum;
    }
  }
}

}  // namespace transducer::reference
