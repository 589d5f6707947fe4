// SPDX-License-Identifier: Apache-2.0
//
// A DenseBatch on an optimised layer: stored in any type and layout, every output asked for. The layer is a
// function that takes a request and a result in host memory. Results come back as an Outcome.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/compare.hpp"
#include "tests/support/fixture.hpp"
#include "tests/support/typed_array.hpp"

namespace transducer::testing {

struct LayerRun {
  DType dtype = DType::float64;         ///< of the logits and their gradient
  DType scores_dtype = DType::float64;  ///< of arc, start and final scores
  Layout input = Layout::contiguous;
  Layout output = Layout::contiguous;
  bool in_place = false;
  bool taps = true;  ///< arc weights, alpha, beta, posteriors, occupancy
  double skip_mass = 0.0;
  Options options = {.threads = 2};
};

struct LayerOutcome : Outcome {
  std::vector<double> skipped_mass;  // [B]
  bool gaps_are_intact = true;
};

/// Runs the batch through `layer(request, result, options)`.
template <class Layer>
LayerOutcome run_layer(DenseBatch& batch, const LayerRun& run, Layer&& layer) {
  const auto [B, T, U, K, A] = std::tuple{batch.B, batch.T, batch.U, batch.K, batch.A()};
  LossRequest request = batch.request();
  request.skip_mass = run.skip_mass;
  const auto input = [&](const std::vector<double>& values, DType dtype,
                         std::vector<std::int64_t> extents) {
    return values.empty() && extents.size() < 4
               ? TypedArray()
               : TypedArray(dtype, std::move(extents), values, run.input);
  };
  TypedArray logits = input(batch.logits, run.dtype, {B, T, U + 1, K});
  TypedArray start = input(batch.start_scores, run.scores_dtype, {B, T});
  TypedArray final = input(batch.final_scores, run.scores_dtype, {B, T + 1});
  TypedArray arcs;
  if (!batch.arc_scores.empty()) {
    arcs = input(batch.arc_scores, run.scores_dtype, {B, T, U + 1, A});
  }
  request.source = DenseSource{.logits = logits.ref()};
  request.arc_scores = arcs.ref();
  request.start_scores = start.ref();
  request.final_scores = final.ref();

  std::vector<TypedArray> made;
  made.reserve(16);
  const auto output = [&](DType dtype, std::vector<std::int64_t> extents) -> TensorRef {
    made.emplace_back(dtype, std::move(extents), run.output);
    return made.back().ref();
  };
  constexpr DType kDouble = DType::float64;
  LossResult result;
  result.costs = output(kDouble, {B});
  result.total = output(kDouble, {});
  result.skipped_mass = output(kDouble, {B});
  result.logits_gradient = run.in_place ? logits.ref() : output(run.dtype, {B, T, U + 1, K});
  const std::size_t after_gradient = made.size();
  if (arcs.ref().defined()) result.arc_scores_gradient = output(run.scores_dtype, {B, T, U + 1, A});
  if (start.ref().defined()) result.start_scores_gradient = output(run.scores_dtype, {B, T});
  if (final.ref().defined()) result.final_scores_gradient = output(run.scores_dtype, {B, T + 1});
  const std::size_t before_taps = made.size();
  if (run.taps) {
    result.arc_weights = output(kDouble, {B, T, U + 1, A});
    result.alpha = output(kDouble, {B, T + 1, U + 1});
    result.beta = output(kDouble, {B, T + 1, U + 1});
    result.arc_posterior = output(kDouble, {B, T, U + 1, A});
    result.occupancy = output(kDouble, {B, T, U + 1});
  }
  layer(request, result, run.options);

  LayerOutcome o;
  o.costs = made[0].values();
  o.total = made[1].values()[0];
  o.skipped_mass = made[2].values();
  o.logits_gradient = (run.in_place ? logits : made[after_gradient - 1]).values();
  std::size_t next = after_gradient;
  if (arcs.ref().defined()) o.arc_scores_gradient = made[next++].values();
  if (start.ref().defined()) o.start_scores_gradient = made[next++].values();
  if (final.ref().defined()) o.final_scores_gradient = made[next++].values();
  if (run.taps) {
    o.arc_weights = made[before_taps].values();
    o.alpha = made[before_taps + 1].values();
    o.beta = made[before_taps + 2].values();
    o.arc_posterior = made[before_taps + 3].values();
    o.occupancy = made[before_taps + 4].values();
  }
  for (TypedArray& array : made) o.gaps_are_intact = o.gaps_are_intact && array.gaps_are_intact();
  return o;
}

/// The batch whose numbers are what `run` stores: for the reference, in float64.
inline DenseBatch as_stored(DenseBatch batch, const LayerRun& run) {
  batch.logits = rounded(batch.logits, run.dtype);
  for (auto* scores : {&batch.arc_scores, &batch.start_scores, &batch.final_scores}) {
    *scores = rounded(*scores, run.scores_dtype);
  }
  return batch;
}

/// Which outputs differ by more than `tolerance` (see compare.hpp); "" if none.
inline std::string outcome_difference(const Outcome& got, const Outcome& want, double tolerance,
                                      bool taps = true) {
  std::string wrong = difference("costs", got.costs, want.costs, tolerance);
  wrong += difference("total", got.total, want.total, tolerance);
  wrong += difference("logits_gradient", got.logits_gradient, want.logits_gradient, tolerance);
  wrong += difference("arc_scores_gradient", got.arc_scores_gradient, want.arc_scores_gradient,
                      tolerance);
  wrong += difference("start_scores_gradient", got.start_scores_gradient,
                      want.start_scores_gradient, tolerance);
  wrong += difference("final_scores_gradient", got.final_scores_gradient,
                      want.final_scores_gradient, tolerance);
  if (!taps) return wrong;
  wrong += difference("arc_weights", got.arc_weights, want.arc_weights, tolerance);
  wrong += difference("alpha", got.alpha, want.alpha, tolerance);
  wrong += difference("beta", got.beta, want.beta, tolerance);
  wrong += difference("arc_posterior", got.arc_posterior, want.arc_posterior, tolerance);
  wrong += difference("occupancy", got.occupancy, want.occupancy, tolerance);
  return wrong;
}

}  // namespace transducer::testing
