// SPDX-License-Identifier: Apache-2.0
//
// The reference against first principles, over random variant tables and over every named variant
// with random arguments: costs, posteriors and arc weights against the enumeration of all paths.
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "reference/variants/all.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/feature_counts.hpp"
#include "tests/support/generators.hpp"
#include "tests/support/property.hpp"

namespace transducer::testing {
namespace {

/// Arc weights, posteriors and cost of every utterance, by enumeration, in the layout of the batch.
struct Enumerated {
  std::vector<double> costs, arc_weights, arc_posterior, start_posterior, final_posterior;
};

Enumerated enumerate(const DenseBatch& batch) {
  Enumerated e;
  const auto nodes = static_cast<std::size_t>(batch.B * batch.T * (batch.U + 1) * batch.A());
  e.arc_weights.assign(nodes, -kInf);
  e.arc_posterior.assign(nodes, 0.0);
  e.start_posterior.assign(static_cast<std::size_t>(batch.B * batch.T), 0.0);
  e.final_posterior.assign(static_cast<std::size_t>(batch.B * (batch.T + 1)), 0.0);
  for (std::int64_t b = 0; b < batch.B; ++b) {
    const reference::TinyLattice tiny = tiny_lattice(batch, b);
    const auto index = [&](std::int64_t t, std::int64_t u, std::int64_t a) {
      return static_cast<std::size_t>(((b * batch.T + t) * (batch.U + 1) + u) * batch.A() + a);
    };
    const double cost = reference::enumerated_cost(tiny);
    e.costs.push_back(cost);
    for (std::int64_t t = 0; t < tiny.frames; ++t) {
      for (std::int64_t u = 0; u <= static_cast<std::int64_t>(tiny.labels.size()); ++u) {
        for (int a = 0; a < batch.variant.num_arcs; ++a) {
          e.arc_weights[index(t, u, a)] = reference::arc_weight(tiny, t, u, a);
        }
      }
    }
    for (const reference::EnumeratedPath& path : reference::enumerate_paths(tiny)) {
      const double p = std::exp(path.weight + cost);
      for (const reference::PathStep& step : path.steps) {
        e.arc_posterior[index(step.t, step.u, step.arc)] += p;
      }
      if (tiny.frames == 0) continue;
      e.start_posterior[static_cast<std::size_t>(b * batch.T + path.start_frame)] += p;
      e.final_posterior[static_cast<std::size_t>(b * (batch.T + 1) + path.end_frame)] += p;
    }
  }
  return e;
}

std::vector<double> negated(std::vector<double> values) {
  for (double& value : values) value = 0.0 - value;
  return values;
}

std::string forward_equals_enumeration(DenseBatch batch) {
  const Outcome o = batch.run();
  const Enumerated e = enumerate(batch);
  std::string wrong = difference("costs", o.costs, e.costs, 1e-12);
  wrong += difference("arc weights", o.arc_weights, e.arc_weights, 1e-12);
  wrong += difference("arc posteriors", o.arc_posterior, e.arc_posterior, 1e-12);
  if (!batch.arc_scores.empty()) {
    wrong += difference("gradient of arc scores", o.arc_scores_gradient, negated(e.arc_posterior),
                        1e-12);
  }
  if (!batch.start_scores.empty()) {
    wrong += difference("gradient of start scores", o.start_scores_gradient,
                        negated(e.start_posterior), 1e-12);
  }
  if (!batch.final_scores.empty()) {
    wrong += difference("gradient of final scores", o.final_scores_gradient,
                        negated(e.final_posterior), 1e-12);
  }
  return wrong;
}

TEST(Reference, ForwardEqualsEnumerationOverRandomTables) {
  FeatureCounts features;
  for_all(random_batch(), [&](DenseBatch batch) {
    features.count(batch);
    return forward_equals_enumeration(std::move(batch));
  });
  features.print("random tables");
  features.expect_each_above(3.0);
}

class NamedReference : public ::testing::TestWithParam<std::size_t> {};

TEST_P(NamedReference, ForwardEqualsEnumeration) {
  FeatureCounts features;
  const NamedVariant& variant = named_variants()[GetParam()];
  for_all(named_batch(variant), [&](DenseBatch batch) {
    features.count(batch);
    return forward_equals_enumeration(std::move(batch));
  });
  EXPECT_GT(features.share("feasible"), 30.0);
}

INSTANTIATE_TEST_SUITE_P(EachVariant, NamedReference,
                         ::testing::Range(std::size_t{0}, named_variants().size()),
                         [](const auto& info) { return named_variants()[info.param].name; });

}  // namespace
}  // namespace transducer::testing
