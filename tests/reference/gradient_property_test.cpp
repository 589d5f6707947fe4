// SPDX-License-Identifier: Apache-2.0
//
// Gradients of the reference against central differences, over random tables and named variants.
//
// With gradient scales s != 1 (FastEmit) the gradient is that of a surrogate whose value is not the
// cost: nll + sum over arcs of stopgrad(gamma) * sum over columns of (s - 1) * (-column). The
// difference quotient is taken of that surrogate. Clamping and the upstream factor are then applied
// to the quotient: clamp at unit scale, then multiply.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/compare.hpp"
#include "tests/support/generators.hpp"
#include "tests/support/property.hpp"

namespace transducer::testing {
namespace {

constexpr double kStep = 1e-4;
constexpr double kTolerance = 1e-6;

/// Costs alone.
std::vector<double> costs_of(DenseBatch& batch) {
  std::vector<double> costs;
  LossResult result;
  result.costs = DenseBatch::make(costs, {batch.B});
  run_reference(batch.request(), result);
  return costs;
}

/// d cost[b] / d values[b, i] by central differences. Element i of every utterance moves at once:
/// costs of others do not depend on it. 0 where the cost is +inf or the element -inf.
std::vector<double> quotient(DenseBatch& batch, std::vector<double>& values,
                             const std::function<std::vector<double>()>& value_of) {
  std::vector<double> gradient(values.size(), 0.0);
  const std::size_t width = values.size() / static_cast<std::size_t>(batch.B);
  const std::vector<double> kept = values;
  for (std::size_t i = 0; i < width; ++i) {
    const auto move = [&](double step) {
      for (std::size_t j = i; j < values.size(); j += width) values[j] = kept[j] + step;
      return value_of();
    };
    const std::vector<double> up = move(kStep);
    const std::vector<double> down = move(-kStep);
    move(0.0);
    for (std::size_t b = 0; b < up.size(); ++b) {
      if (std::isfinite(up[b])) gradient[b * width + i] = (up[b] - down[b]) / (2.0 * kStep);
    }
  }
  return gradient;
}

/// Per utterance: sum over arcs of gamma * sum over columns of (s - 1) * (-column), the columns
/// worked out by the brute force at the batch's present logits.
std::vector<double> surrogate_term(const DenseBatch& batch, const std::vector<double>& gamma) {
  std::vector<double> sums;
  for (std::int64_t b = 0; b < batch.B; ++b) {
    double sum = 0.0;
    reference::TinyLattice tiny = tiny_lattice(batch, b);
    tiny.arc_scores = {};
    const VariantTable table = tiny.table;
    for (int a = 0; a < table.num_arcs; ++a) {
      for (int i = 0; i < table.arcs[a].num_columns; ++i) {
        const Column& column = table.arcs[a].columns[i];
        if (column.grad_scale == 1.0) continue;
        Arc& alone = tiny.table.arcs[a];
        alone = table.arcs[a];
        alone.num_columns = 1;
        alone.columns[0] = column;
        alone.constant = {};
        alone.frame_bonus = 0.0;
        for (std::int64_t t = 0; t < tiny.frames; ++t) {
          for (std::int64_t u = 0; u <= static_cast<std::int64_t>(tiny.labels.size()); ++u) {
            const auto index = ((b * batch.T + t) * (batch.U + 1) + u) * batch.A() + a;
            const double probability = gamma[static_cast<std::size_t>(index)];
            if (probability == 0.0) continue;
            sum -= probability * (column.grad_scale - 1.0) * reference::arc_weight(tiny, t, u, a);
          }
        }
      }
    }
    sums.push_back(sum);
  }
  return sums;
}

std::vector<double> logits_quotient(DenseBatch& batch, const std::vector<double>& gamma) {
  return quotient(batch, batch.logits, [&] {
    std::vector<double> values = costs_of(batch);
    const std::vector<double> term = surrogate_term(batch, gamma);
    for (std::size_t b = 0; b < values.size(); ++b) values[b] += term[b];
    return values;
  });
}

std::string gradient_equals_quotient(DenseBatch batch) {
  const Outcome o = batch.run();
  const auto plain = [&] { return costs_of(batch); };
  std::string wrong = difference("gradient of logits", o.logits_gradient,
                                 logits_quotient(batch, o.arc_posterior), kTolerance);
  if (!batch.arc_scores.empty()) {
    wrong += difference("gradient of arc scores", o.arc_scores_gradient,
                        quotient(batch, batch.arc_scores, plain), kTolerance);
  }
  if (!batch.start_scores.empty()) {
    wrong += difference("gradient of start scores", o.start_scores_gradient,
                        quotient(batch, batch.start_scores, plain), kTolerance);
  }
  if (!batch.final_scores.empty()) {
    wrong += difference("gradient of final scores", o.final_scores_gradient,
                        quotient(batch, batch.final_scores, plain), kTolerance);
  }
  return wrong;
}

/// Small: every logit costs two forward passes.
constexpr BatchLimits kSmall = {.batch = 2, .frames = 4, .labels = 3};

TEST(Gradient, EqualsCentralDifferencesOverRandomTables) {
  for_all(random_batch(kSmall), gradient_equals_quotient);
}

class NamedGradient : public ::testing::TestWithParam<std::size_t> {};

TEST_P(NamedGradient, EqualsCentralDifferences) {
  for_all(named_batch(named_variants()[GetParam()], kSmall), gradient_equals_quotient);
}

INSTANTIATE_TEST_SUITE_P(EachVariant, NamedGradient,
                         ::testing::Range(std::size_t{0}, named_variants().size()),
                         [](const auto& info) { return named_variants()[info.param].name; });

TEST(Gradient, IsClampedAtUnitScaleAndThenMultiplied) {
  int clamped = 0;
  int exempt = 0;
  for_all(any_batch(kSmall), [&](DenseBatch batch) {
    const Outcome plain = batch.run();
    std::vector<double> expected = logits_quotient(batch, plain.arc_posterior);
    batch.clamp = 0.0625;
    for (std::int64_t b = 0; b < batch.B; ++b) batch.upstream.push_back(b == 0 ? -2.5 : 0.5);
    const VariantTable bound = bind_table(batch.variant, batch.K, "test");
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto k = static_cast<std::int64_t>(i) % batch.K;
      bool free = false;
      for (int g = 0; g < bound.num_groups; ++g) {
        const Group& group = bound.groups[g];
        free = free || (!group.clamp && group.begin.offset <= k && k < group.end.offset);
      }
      const bool outside = std::abs(expected[i]) > batch.clamp;
      clamped += outside && !free;
      exempt += outside && free;
      if (!free) expected[i] = std::max(-batch.clamp, std::min(batch.clamp, expected[i]));
      expected[i] *= batch.upstream[i / (expected.size() / static_cast<std::size_t>(batch.B))];
    }
    const Outcome o = batch.run();
    std::string wrong = difference("clamped gradient", o.logits_gradient, expected, kTolerance);
    for (std::size_t i = 0; i < o.arc_scores_gradient.size(); ++i) {
      const double upstream =
          batch.upstream[i / (o.arc_scores_gradient.size() / static_cast<std::size_t>(batch.B))];
      wrong += difference("gradient of arc scores, never clamped", o.arc_scores_gradient[i],
                          upstream * plain.arc_scores_gradient[i], 1e-14);
    }
    return wrong;
  });
  EXPECT_GT(clamped, num_cases());  // the clamp had something to do
  EXPECT_GT(exempt, num_cases() / 20);
}

}  // namespace
}  // namespace transducer::testing
