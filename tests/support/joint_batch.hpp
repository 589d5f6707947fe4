// SPDX-License-Identifier: Apache-2.0
//
// A batch of joint inputs that owns its memory, run on the reference (in float64, on the stored
// numbers) and on the CPU or the CUDA layer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/support/cpu_outcome.hpp"

namespace transducer::testing {

struct JointOutcome {
  std::vector<double> costs;  // [B]
  double total = 0.0;
  std::vector<double> encoder, predictor, weight, bias;  ///< gradients
};

struct JointBatch {
  std::int64_t B = 1, T = 1, U = 0, H = 1, K = 2;
  VariantTable variant;
  std::vector<double> encoder, predictor, weight, bias;  // bias may be empty
  std::vector<std::int64_t> targets, frame_lengths, target_lengths, utterance_ids;
  std::vector<bool> predictor_mask;  // [B, U+1] or empty
  Activation activation = Activation::tanh;
  double dropout = 0.0;
  std::uint64_t seed = 0;
  Reduction reduction = Reduction::sum;
  DType encoder_dtype = DType::float64, predictor_dtype = DType::float64;
  DType weight_dtype = DType::float64, bias_dtype = DType::float64;
  Layout layout = Layout::contiguous;
  double skip_mass = 0.0;
  int threads = 2;

  /// Normal inputs, ragged lengths; logits of the order of 1.
  void fill(unsigned seed_of_inputs) {
    std::mt19937_64 random(seed_of_inputs);
    std::normal_distribution<double> normal;
    const auto draw = [&](std::int64_t count, double scale) {
      std::vector<double> values(static_cast<std::size_t>(count));
      for (double& value : values) value = scale * normal(random);
      return values;
    };
    encoder = draw(B * T * H, 1.0);
    predictor = draw(B * (U + 1) * H, 1.0);
    weight = draw(K * H, 1.5 / std::sqrt(static_cast<double>(H)));
    bias = draw(K, 0.5);
    for (std::int64_t b = 0; b < B; ++b) {
      frame_lengths.push_back(b == 0 ? T : std::max<std::int64_t>(1, T - b));
      target_lengths.push_back(b == 0 ? U : U / 2);
    }
    const auto vocabulary = static_cast<std::uint64_t>(K - variant.heads - 1);
    for (std::int64_t i = 0; i < B * U; ++i) {
      targets.push_back(static_cast<std::int64_t>(random() % vocabulary));
    }
  }

  /// On the reference with the stored numbers in float64, or on the CPU layer as stored.
  JointOutcome run(bool on_reference) { return on_reference ? run_exactly() : run_on_cpu(); }
  JointOutcome run_exactly() {
    return run_with(true, [](const LossRequest& request, const LossResult& result) {
      run_reference(request, result);
    });
  }
  JointOutcome run_on_cpu() {
    return run_with(false, [&](const LossRequest& request, const LossResult& result) {
      run_cpu(request, result, {.threads = threads});
    });
  }

  /// On any layer; `on_reference`: inputs and outputs are float64.
  template <class Run>
  JointOutcome run_with(bool on_reference, Run run_layer) {
    const auto input = [&](const std::vector<double>& values, DType dtype,
                           const std::vector<std::int64_t>& extents) {
      return on_reference ? TypedArray(DType::float64, extents, rounded(values, dtype))
                          : TypedArray(dtype, extents, values, layout);
    };
    TypedArray e = input(encoder, encoder_dtype, {B, T, H});
    TypedArray p = input(predictor, predictor_dtype, {B, U + 1, H});
    TypedArray w = input(weight, weight_dtype, {K, H});
    TypedArray c = bias.empty() ? TypedArray() : input(bias, bias_dtype, {K});
    const auto gradient = [&](DType dtype, const std::vector<std::int64_t>& extents) {
      return TypedArray(on_reference ? DType::float64 : dtype, extents,
                        on_reference ? Layout::contiguous : layout);
    };
    TypedArray de = gradient(encoder_dtype, {B, T, H});
    TypedArray dp = gradient(predictor_dtype, {B, U + 1, H});
    TypedArray dw = gradient(weight_dtype, {K, H});
    TypedArray dc = bias.empty() ? TypedArray() : gradient(bias_dtype, {K});
    std::vector<std::uint8_t> mask(predictor_mask.begin(), predictor_mask.end());

    LossRequest request;
    request.caller = "test";
    JointSource source{
        .encoder = e.ref(), .predictor = p.ref(), .weight = w.ref(), .bias = c.ref()};
    if (!mask.empty()) {
      source.predictor_mask = contiguous_ref(mask.data(), DType::boolean, {B, U + 1});
    }
    if (!utterance_ids.empty()) source.utterance_ids = DenseBatch::index(utterance_ids, {B});
    source.activation = activation;
    source.dropout = dropout;
    source.seed = seed;
    request.source = source;
    request.targets = DenseBatch::index(targets, {B, U});
    request.frame_lengths = DenseBatch::index(frame_lengths, {B});
    request.target_lengths = DenseBatch::index(target_lengths, {B});
    request.variant = variant;
    request.reduction = reduction;
    request.skip_mass = skip_mass;

    JointOutcome o;
    LossResult result;
    result.costs = DenseBatch::make(o.costs, {B});
    result.total = contiguous_ref(&o.total, DType::float64, {});
    result.encoder_gradient = de.ref();
    result.predictor_gradient = dp.ref();
    result.weight_gradient = dw.ref();
    result.bias_gradient = dc.ref();
    run_layer(request, result);
    o.encoder = de.values();
    o.predictor = dp.values();
    o.weight = dw.values();
    o.bias = dc.values();
    return o;
  }
};

}  // namespace transducer::testing
