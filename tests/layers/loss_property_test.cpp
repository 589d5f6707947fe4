// SPDX-License-Identifier: Apache-2.0
//
// A layer against the reference: every output, over random variant tables and over every
// named variant with random arguments, with every option, in float64 and in the narrower types.
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "reference/variants/all.hpp"
#include "tests/support/feature_counts.hpp"
#include "tests/support/generators.hpp"
#include "tests/support/outcome.hpp"
#include "tests/support/property.hpp"

// The layer under test: run_cpu or run_cuda.
#include TX_LAYER_OUTCOME

namespace transducer::testing {
namespace {

/// Draws the options that a batch generator leaves alone.
void draw_options(DenseBatch& batch) {
  if (chance(30)) batch.clamp = static_cast<double>(draw(1, 8)) * 0.0625;
  batch.zero_infinity = chance(40);
  batch.semiring = chance(15) ? Semiring::max : Semiring::log;
  batch.reduction = static_cast<Reduction>(draw(0, 4));
  if (chance(40)) {
    const std::int64_t count = batch.reduction == Reduction::none ? batch.B : 1;
    batch.upstream = draw_numbers(count, 2.0, 0.25, 0);
  }
}

rc::Gen<DenseBatch> with_options(const rc::Gen<DenseBatch>& batches) {
  return rc::gen::resize(rc::kNominalSize, rc::gen::exec([=] {
                           DenseBatch batch = *batches;
                           draw_options(batch);
                           return batch;
                         }));
}

/// Weight of the path that the posteriors of utterance b single out, at unit scale.
double path_weight(const DenseBatch& batch, const Outcome& o, std::int64_t b) {
  double weight = 0.0;
  const auto add = [&](const std::vector<double>& on_path, double sign,
                       const std::vector<double>& scores) {
    const std::vector<double> p = part(on_path, b, batch.B);
    const std::vector<double> w = part(scores, b, batch.B);
    for (std::size_t i = 0; i < p.size(); ++i) weight += p[i] == 0.0 ? 0.0 : sign * p[i] * w[i];
  };
  add(o.arc_posterior, 1.0, o.arc_weights);
  if (!batch.start_scores.empty()) add(o.start_scores_gradient, -1.0, batch.start_scores);
  if (!batch.final_scores.empty()) add(o.final_scores_gradient, -1.0, batch.final_scores);
  return weight;
}

/// The best path itself, or one as good: log-sums that differ in their last bit make ties of their
/// own.
std::string best_path_is_as_good(DenseBatch batch) {
  batch.reduction = Reduction::none;
  batch.upstream.clear();
  const Outcome want = batch.run();
  const LayerOutcome got = TX_RUN_LAYER(batch);
  if (outcome_difference(got, want, 1e-11).empty()) return {};
  std::string wrong = difference("costs", got.costs, want.costs, 1e-11) +
                      difference("alpha", got.alpha, want.alpha, 1e-11) +
                      difference("beta", got.beta, want.beta, 1e-11);
  for (std::int64_t b = 0; b < batch.B; ++b) {
    const double cost = want.costs[static_cast<std::size_t>(b)];
    const double weight = path_weight(batch, got, b);
    if (batch.frame_lengths[static_cast<std::size_t>(b)] > 0 &&
        path_weight(batch, want, b) != 0.0) {
      wrong += difference("weight of the best path", weight, -cost, 1e-11);
    }
  }
  return wrong;
}

std::string equals_reference(DenseBatch batch) {
  if (batch.semiring == Semiring::max) return best_path_is_as_good(std::move(batch));
  const Outcome want = batch.run();
  return outcome_difference(TX_RUN_LAYER(batch), want, 1e-11);
}

/// Sums of small multiples of 1/16 are exact, so ties are ties in both layers.
TEST(LayerLoss, ExactTiesAreBrokenAsTheReferenceDoes) {
  for (const NamedVariant& variant : named_variants()) {
    if (variant.name == "bypass" || variant.name == "target_robust") continue;  // log-sums
    for_all(named_batch(variant, {.infinite_logits = false, .step = 1.0}), [](DenseBatch batch) {
      batch.from_log_probs = true;
      batch.semiring = Semiring::max;
      const Outcome want = batch.run();
      return outcome_difference(TX_RUN_LAYER(batch), want, 1e-11);
    });
  }
}

TEST(LayerLoss, EqualsReferenceOverRandomTables) {
  FeatureCounts features;
  for_all(with_options(random_batch()), [&](DenseBatch batch) {
    features.count(batch);
    return equals_reference(std::move(batch));
  });
  features.print("random tables");
  features.expect_each_above(3.0);
}

class NamedLayerLoss : public ::testing::TestWithParam<std::size_t> {};

TEST_P(NamedLayerLoss, EqualsReference) {
  for_all(with_options(named_batch(named_variants()[GetParam()])), equals_reference);
}

INSTANTIATE_TEST_SUITE_P(EachVariant, NamedLayerLoss,
                         ::testing::Range(std::size_t{0}, named_variants().size()),
                         [](const auto& info) { return named_variants()[info.param].name; });

/// arc_scores that broadcast: the gradient is summed over the axes that were missing or 1.
TEST(LayerLoss, BroadcastArcScoresSumTheirGradient) {
  for_all(random_batch(), [](DenseBatch batch) {
    const std::int64_t A = batch.A();
    const std::vector<std::vector<std::int64_t>> shapes = {
        {A}, {1}, {batch.T, 1, A}, {batch.B, 1, batch.U + 1, 1}, {1, batch.T, batch.U + 1, A}};
    const auto& extents = shapes[static_cast<std::size_t>(draw(0, 4))];
    std::int64_t size = 1;
    for (std::int64_t extent : extents) size *= extent;
    const std::vector<double> scores = draw_numbers(size, 1.0, 0.25, chance(40) ? 10 : 0);
    batch.arc_scores.clear();
    std::vector<std::vector<double>> gradients, costs;
    for (bool on_reference : {true, false}) {
      TypedArray given(DType::float64, extents, scores);
      TypedArray gradient(DType::float64, extents);
      LossRequest request = batch.request();
      request.arc_scores = given.ref();
      request.skip_mass = 0.0;
      LossResult result;
      result.costs = DenseBatch::make(costs.emplace_back(), {batch.B});
      result.arc_scores_gradient = gradient.ref();
      on_reference ? run_reference(request, result) : TX_RUN_LAYER(request, result);
      gradients.push_back(gradient.values());
    }
    return difference("costs", costs[1], costs[0], 1e-11) +
           difference("gradient", gradients[1], gradients[0], 1e-11);
  });
}

TEST(LayerLoss, PaddingIsNeverReadAndItsGradientIsZero) {
  for_all(with_options(any_batch()), [](DenseBatch batch) {
    batch.semiring = Semiring::log;  // ties: see above
    const Outcome want = batch.run();
    DenseBatch hostile = with_hostile_padding(batch);
    const LayerOutcome got = TX_RUN_LAYER(hostile);
    std::string wrong = outcome_difference(got, want, 1e-11);
    for_each_padded_node(batch, [&](std::int64_t b, std::int64_t t, std::int64_t u, bool padding) {
      const auto row = static_cast<std::size_t>((b * batch.T + t) * (batch.U + 1) + u);
      for (std::int64_t k = 0; padding && k < batch.K; ++k) {
        const auto i = row * static_cast<std::size_t>(batch.K) + static_cast<std::size_t>(k);
        if (got.logits_gradient[i] != 0.0) wrong += "padding has a gradient; ";
      }
    });
    return wrong;
  });
}

/// NaN or +inf in some logits, arc, start and final scores.
void poison(DenseBatch& batch) {
  for (auto* values :
       {&batch.logits, &batch.arc_scores, &batch.start_scores, &batch.final_scores}) {
    if (values->empty() || !chance(60)) continue;
    for (std::int64_t n = draw(1, 2); n > 0; --n) {
      const auto i = draw(0, static_cast<std::int64_t>(values->size()) - 1);
      (*values)[static_cast<std::size_t>(i)] = chance(50) ? kInf : kNaN;
    }
  }
}

TEST(LayerLoss, NaNAndInfinityCountWhereTheReferenceSaysSo) {
  int poisoned = 0;
  int clean = 0;
  const auto batches = rc::gen::resize(rc::kNominalSize, rc::gen::exec([] {
                                         DenseBatch batch = *any_batch();
                                         draw_options(batch);
                                         poison(batch);
                                         return batch;
                                       }));
  for_all(batches, [&](DenseBatch batch) {
    batch.semiring = Semiring::log;
    const Outcome want = batch.run();
    bool any = false;
    for (double cost : want.costs) any = any || std::isnan(cost);
    (any ? poisoned : clean) += 1;
    const LayerOutcome got = TX_RUN_LAYER(batch);
    // What arc weights, alpha and beta hold where a number is poison is nobody's business.
    return outcome_difference(got, want, 1e-11, false) +
           difference("arc_posterior", got.arc_posterior, want.arc_posterior, 1e-11) +
           difference("occupancy", got.occupancy, want.occupancy, 1e-11);
  });
  if (num_cases() < 100) return;
  EXPECT_GT(poisoned, num_cases() / 20);
  EXPECT_GT(clean, num_cases() / 20);
}

/// |got - want| against the largest gradient, and for 16-bit outputs their own rounding.
std::string narrow_difference(const char* what, const std::vector<double>& got,
                              const std::vector<double>& want, DType dtype) {
  double largest = 1.0;
  for (double w : want) largest = std::isfinite(w) ? std::max(largest, std::abs(w)) : largest;
  const double rounding = dtype == DType::bfloat16  ? std::ldexp(1.0, -8)
                          : dtype == DType::float16 ? std::ldexp(1.0, -11)
                                                    : 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    const double allowed = 2e-5 * largest + rounding * std::abs(want[i]);
    if (got[i] == want[i] || std::abs(got[i] - want[i]) <= allowed) continue;
    return difference(what, got, want, 2e-5) + "; ";
  }
  return {};
}

class NarrowLayerLoss : public ::testing::TestWithParam<DType> {};

TEST_P(NarrowLayerLoss, EqualsReferenceOnTheRoundedInputs) {
  const LayerRun run{.dtype = GetParam(), .scores_dtype = GetParam()};
  for_all(with_options(any_batch()), [&](DenseBatch batch) {
    // float32 log-sums may break what is a tie in float64; the max semiring is compared in float64.
    batch.semiring = Semiring::log;
    DenseBatch stored = as_stored(batch, run);
    const Outcome want = stored.run();
    const LayerOutcome got = TX_RUN_LAYER(stored, run);
    return narrow_difference("costs", got.costs, want.costs, DType::float32) +
           narrow_difference("logits", got.logits_gradient, want.logits_gradient, run.dtype) +
           narrow_difference("arcs", got.arc_scores_gradient, want.arc_scores_gradient, run.dtype) +
           narrow_difference("start", got.start_scores_gradient, want.start_scores_gradient,
                             run.dtype) +
           narrow_difference("final", got.final_scores_gradient, want.final_scores_gradient,
                             run.dtype);
  });
}

INSTANTIATE_TEST_SUITE_P(EachType, NarrowLayerLoss,
                         ::testing::Values(DType::float32, DType::bfloat16, DType::float16),
                         [](const auto& info) { return dtype_name(info.param); });

}  // namespace
}  // namespace transducer::testing
