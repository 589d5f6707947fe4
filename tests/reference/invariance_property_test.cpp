// SPDX-License-Identifier: Apache-2.0
//
// What must not matter: the company of other utterances, their order, padding, the run, a shift of
// a softmax's logits, the names of labels; and what must: the upstream factor, linearly.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/compare.hpp"
#include "tests/support/generators.hpp"
#include "tests/support/outcome.hpp"
#include "tests/support/property.hpp"

namespace transducer::testing {
namespace {

TEST(Invariance, BatchOfManyEqualsManyOfOneInAnyOrder) {
  for_all(any_batch(), [](DenseBatch batch) {
    const Outcome together = batch.run();
    std::vector<std::int64_t> order(static_cast<std::size_t>(batch.B));
    std::iota(order.begin(), order.end(), 0);
    std::rotate(order.begin(), order.begin() + 1, order.end());
    const Outcome rotated = select(batch, order).run();
    std::string wrong;
    for (std::int64_t b = 0; b < batch.B; ++b) {
      const std::vector<double> expected = everything_of(together, b, batch.B);
      const Outcome alone = select(batch, {b}).run();
      wrong += bit_difference("alone", everything_of(alone, 0, 1), expected);
      const auto place = std::find(order.begin(), order.end(), b) - order.begin();
      wrong += bit_difference("rotated", everything_of(rotated, place, batch.B), expected);
    }
    return wrong;
  });
}

TEST(Invariance, TwiceGivesTheSameBits) {
  for_all(any_batch(), [](DenseBatch batch) {
    const Outcome first = batch.run();
    return bit_difference("second run", batch.run(), first, batch.B);
  });
}

TEST(Invariance, PaddingMayHoldAnythingAndGetsZero) {
  int padded = 0;
  for_all(any_batch(), [&](DenseBatch batch) {
    const Outcome plain = batch.run();
    const Outcome hostile = with_hostile_padding(batch).run();
    std::string wrong = bit_difference("hostile padding", hostile, plain, batch.B);
    for_each_padded_node(batch, [&](std::int64_t b, std::int64_t t, std::int64_t u, bool padding) {
      if (!padding) return;
      ++padded;
      const auto node = static_cast<std::size_t>((b * batch.T + t) * (batch.U + 1) + u);
      const auto k = static_cast<std::size_t>(batch.K);
      for (std::size_t i = node * k; i < (node + 1) * k; ++i) {
        if (hostile.logits_gradient[i] != 0.0) wrong += "gradient in padding is not 0; ";
      }
      if (hostile.occupancy[node] != 0.0) wrong += "occupancy in padding is not 0; ";
    });
    return wrong;
  });
  EXPECT_GT(padded, num_cases());
}

TEST(Invariance, NoPathGivesInfinityAndExactlyZero) {
  int infeasible = 0;
  for_all(any_batch(), [&](DenseBatch batch) {
    const Outcome o = batch.run();
    batch.zero_infinity = true;
    const Outcome zeroed = batch.run();
    std::string wrong;
    for (std::int64_t b = 0; b < batch.B; ++b) {
      const double cost = o.costs[static_cast<std::size_t>(b)];
      const double other = zeroed.costs[static_cast<std::size_t>(b)];
      wrong += difference("zero_infinity", other, cost == kInf ? 0.0 : cost, 0.0);
      if (cost != kInf) continue;
      ++infeasible;
      const std::vector<double> results = results_of(o, b, batch.B);
      if (std::any_of(results.begin() + 1, results.end(), [](double g) { return g != 0.0; })) {
        wrong += "a gradient without a path is not 0; ";
      }
    }
    wrong +=
        difference("gradient with zero_infinity", zeroed.logits_gradient, o.logits_gradient, 0.0);
    return wrong;
  });
  EXPECT_GT(infeasible, num_cases() / 10);
}

/// Powers of two scale without rounding, so linearity holds to the bit.
TEST(Invariance, GradientsAreLinearInTheUpstreamFactor) {
  for_all(any_batch(), [](DenseBatch batch) {
    const Outcome plain = batch.run();
    const double factors[] = {-2.0, 0.0, 0.25};
    batch.upstream.assign(std::begin(factors), std::begin(factors) + batch.B);
    const Outcome scaled = batch.run();
    std::string wrong;
    for (std::int64_t b = 0; b < batch.B; ++b) {
      std::vector<double> expected = results_of(plain, b, batch.B);
      for (std::size_t i = 1; i < expected.size(); ++i) expected[i] *= factors[b];
      wrong += difference("scaled", results_of(scaled, b, batch.B), expected, 0.0);
    }
    return wrong;
  });
}

/// A random batch whose every column lies in the one softmax it subtracts: [0, V) or the heads.
DenseBatch through_softmax_only(DenseBatch batch) {
  VariantTable& table = batch.variant;
  const std::int64_t split = batch.K - table.heads;
  table.num_groups = 0;
  add_group(table, {.begin = position(0), .end = vocabulary_plus(0)});
  if (table.heads > 0) {
    add_group(table, {.begin = vocabulary_plus(0), .end = vocabulary_plus(table.heads)});
  }
  for (int a = 0; a < table.num_arcs; ++a) {
    Arc& arc = table.arcs[a];
    arc.num_columns = std::min(arc.num_columns, 1 + (table.heads > 0));
    for (int i = 0; i < arc.num_columns; ++i) {
      Column& column = arc.columns[i];
      const double scale = column.grad_scale;
      const std::int64_t inside = std::abs(column.position.offset) % split;
      if (i == 1) {  // one column in each softmax
        column = fixed_column(vocabulary_plus(inside % table.heads), group_bit(1));
      } else {
        column = column.kind == ColumnKind::label ? label_column(group_bit(0))
                                                  : fixed_column(position(inside), group_bit(0));
      }
      column.grad_scale = scale;
    }
  }
  batch.from_log_probs = false;
  return batch;
}

/// For each node and softmax group of a bound table calls visit(first element of the row, group).
template <class Visit>
void for_each_softmax(const DenseBatch& batch, Visit&& visit) {
  const VariantTable bound = bind_table(batch.variant, batch.K, "test");
  for (std::size_t row = 0; row < batch.logits.size(); row += static_cast<std::size_t>(batch.K)) {
    for (int g = 0; g < bound.num_groups; ++g) {
      if (bound.groups[g].normaliser == Normaliser::softmax) visit(row, bound.groups[g]);
    }
  }
}

std::string shifts_do_not_matter(DenseBatch batch) {
  const Outcome before = batch.run();
  std::string wrong;
  for_each_softmax(batch, [&](std::size_t row, const Group& group) {
    double sum = 0.0;
    double largest = 1.0;
    for (std::int64_t k = group.begin.offset; k < group.end.offset; ++k) {
      if (!group_contains(group, k, -1)) continue;
      const double g = before.logits_gradient[row + static_cast<std::size_t>(k)];
      sum += g;
      largest = std::max(largest, std::abs(g));
    }
    wrong += difference("sum of a gradient row", sum / largest, 0.0, 1e-12);
  });
  double shift = 0.5;
  for_each_softmax(batch, [&](std::size_t row, const Group& group) {
    shift = shift > 4.0 ? -3.75 : shift + 0.75;
    for (std::int64_t k = group.begin.offset; k < group.end.offset; ++k) {
      if (group_contains(group, k, -1)) batch.logits[row + static_cast<std::size_t>(k)] += shift;
    }
  });
  const Outcome after = batch.run();
  wrong += difference("costs after a shift", after.costs, before.costs, 1e-12);
  return wrong +
         difference("gradient after a shift", after.logits_gradient, before.logits_gradient, 1e-12);
}

TEST(Invariance, ShiftsOfASoftmaxDoNotMatterAndItsGradientSumsToZero) {
  for_all(random_batch(), [](const DenseBatch& batch) {
    return shifts_do_not_matter(through_softmax_only(batch));
  });
}

class NamedInvariance : public ::testing::TestWithParam<std::size_t> {};

TEST_P(NamedInvariance, ShiftsOfASoftmaxDoNotMatterAndItsGradientSumsToZero) {
  for_all(named_batch(named_variants()[GetParam()]), [](DenseBatch batch) {
    batch.from_log_probs = false;
    return shifts_do_not_matter(batch);
  });
}

/// Labels that no arc reads as a fixed column trade places.
TEST_P(NamedInvariance, RenamingLabelsPermutesGradients) {
  int renamed = 0;
  for_all(named_batch(named_variants()[GetParam()]), [&](DenseBatch batch) {
    const VariantTable bound = bind_table(batch.variant, batch.K, "test");
    std::vector<std::int64_t> free;
    for (std::int64_t k = 0; k < batch.K - bound.heads; ++k) {
      bool fixed = false;
      for (int a = 0; a < bound.num_arcs; ++a) {
        for (int i = 0; i < bound.arcs[a].num_columns; ++i) {
          const Column& column = bound.arcs[a].columns[i];
          fixed = fixed || (column.kind == ColumnKind::fixed && column.position.offset == k);
        }
      }
      if (!fixed) free.push_back(k);
    }
    std::vector<std::int64_t> name(static_cast<std::size_t>(batch.K));
    std::iota(name.begin(), name.end(), 0);
    for (std::size_t i = 0; i < free.size(); ++i) {
      name[static_cast<std::size_t>(free[i])] = free[(i + 1) % free.size()];
    }
    renamed += free.size() > 1;
    DenseBatch other = batch;
    for (std::int64_t& target : other.targets) target = name[static_cast<std::size_t>(target)];
    for (std::size_t i = 0; i < batch.logits.size(); ++i) {
      const std::size_t k = i % name.size();
      other.logits[i - k + static_cast<std::size_t>(name[k])] = batch.logits[i];
    }
    const Outcome before = batch.run();
    const Outcome after = other.run();
    std::vector<double> expected(before.logits_gradient.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::size_t k = i % name.size();
      expected[i - k + static_cast<std::size_t>(name[k])] = before.logits_gradient[i];
    }
    return difference("costs", after.costs, before.costs, 1e-12) +
           difference("gradient", after.logits_gradient, expected, 1e-12);
  });
  EXPECT_GT(renamed, num_cases() / 4);
}

INSTANTIATE_TEST_SUITE_P(EachVariant, NamedInvariance,
                         ::testing::Range(std::size_t{0}, named_variants().size()),
                         [](const auto& info) { return named_variants()[info.param].name; });

}  // namespace
}  // namespace transducer::testing
