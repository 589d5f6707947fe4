// SPDX-License-Identifier: Apache-2.0
//
// Arc weights and which arcs exist, by hand: one frame or two, logits that are logarithms of small
// integers.
#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "reference/scores.hpp"
#include "reference/variants/all.hpp"
#include "tests/support/expect.hpp"
#include "tests/support/noise.hpp"

namespace transducer::testing {
namespace {

using reference::column_is_absent;
using reference::group_log_sum;
using reference::log_normaliser;

const std::vector<double> kLogits = {std::log(1.0), std::log(2.0), std::log(3.0), std::log(4.0)};

Group columns(std::int64_t begin, std::int64_t end) {
  return {.begin = position(begin), .end = position(end)};
}

TEST(ArcWeights, GroupLogSums) {
  EXPECT_NEAR(group_log_sum(columns(0, 4), kLogits, 1), std::log(10.0), 1e-15);
  EXPECT_NEAR(group_log_sum(columns(1, 3), kLogits, 1), std::log(5.0), 1e-15);
  Group group = columns(0, 4);
  group.exclude_fixed = true;
  group.excluded = position(2);
  EXPECT_NEAR(group_log_sum(group, kLogits, 1), std::log(7.0), 1e-15);
  group.exclude_label = true;
  EXPECT_NEAR(group_log_sum(group, kLogits, 1), std::log(5.0), 1e-15);
  EXPECT_NEAR(group_log_sum(group, kLogits, 2), std::log(7.0), 1e-15) << "excluded twice";
  EXPECT_NEAR(group_log_sum(group, kLogits, -1), std::log(7.0), 1e-15) << "u = U excludes nothing";
}

TEST(ArcWeights, GroupLogSumsOfNothing) {
  Group group = columns(2, 3);
  group.exclude_label = true;
  EXPECT_EQ(group_log_sum(group, kLogits, 2), -kInf);
  EXPECT_EQ(group_log_sum(columns(0, 2), std::vector<double>{-kInf, -kInf, 1.0}, 0), -kInf);
  EXPECT_NEAR(group_log_sum(columns(0, 2), std::vector<double>{-kInf, 2.0}, 0), 2.0, 0.0);
}

TEST(ArcWeights, GroupLogSumsArePoisonedByWhatTheyRead) {
  const std::vector<double> logits = {0.0, kNaN, kInf, 0.0};
  EXPECT_TRUE(std::isnan(group_log_sum(columns(0, 2), logits, 0)));
  EXPECT_TRUE(std::isnan(group_log_sum(columns(2, 4), logits, 0)));
  EXPECT_EQ(group_log_sum(columns(3, 4), logits, 0), 0.0);
  Group group = columns(0, 2);
  group.exclude_label = true;
  EXPECT_EQ(group_log_sum(group, logits, 1), 0.0) << "an excluded column is not read";
  group = columns(2, 3);
  group.normaliser = Normaliser::bernoulli;
  EXPECT_TRUE(std::isnan(group_log_sum(group, logits, 0)));
}

TEST(ArcWeights, BernoulliGroupsTakeSoftplus) {
  Group group = columns(2, 3);
  group.normaliser = Normaliser::bernoulli;
  EXPECT_NEAR(group_log_sum(group, kLogits, 0), std::log(4.0), 1e-15);  // log(1 + 3)
  EXPECT_EQ(group_log_sum(group, std::vector<double>{0, 0, -kInf}, 0), 0.0);
  EXPECT_EQ(group_log_sum(group, std::vector<double>{0, 0, 800.0}, 0), 800.0);
}

TEST(ArcWeights, OnlySoftmaxAndBernoulliNormalise) {
  Group group = columns(0, 4);
  EXPECT_EQ(log_normaliser(group, 1.5, false), 1.5);
  EXPECT_EQ(log_normaliser(group, 1.5, true), 0.0);
  group.normaliser = Normaliser::none;
  EXPECT_EQ(log_normaliser(group, 1.5, false), 0.0);
  group.normaliser = Normaliser::bernoulli;
  EXPECT_EQ(log_normaliser(group, 1.5, false), 1.5);
  EXPECT_EQ(log_normaliser(group, 1.5, true), 0.0);
}

/// Groups: 0 softmax over {0, 1}, 1 softmax over {2, 3}, 2 none over {2, 3}, 3 Bernoulli {3}.
VariantTable four_groups() {
  VariantTable table;
  add_group(table, columns(0, 2));
  add_group(table, columns(2, 4));
  add_group(table, columns(2, 4));
  add_group(table, columns(3, 4));
  table.groups[2].normaliser = Normaliser::none;
  table.groups[3].normaliser = Normaliser::bernoulli;
  return table;
}

TEST(ArcWeights, ALabelOutsideEverySoftmaxItSubtractsIsAbsent) {
  const VariantTable table = four_groups();
  const auto both = static_cast<std::uint8_t>(group_bit(0) | group_bit(1));
  const auto absent = [&](const Column& column, std::int64_t label) {
    EXPECT_EQ(column_is_absent(table, column, label, true),
              column_is_absent(table, column, label, false))
        << "from_log_probs changes nothing here";
    return column_is_absent(table, column, label, false);
  };
  EXPECT_FALSE(absent(label_column(group_bit(0)), 1));
  EXPECT_TRUE(absent(label_column(group_bit(0)), 2));
  EXPECT_FALSE(absent(label_column(both), 2)) << "one of the two softmaxes is enough";
  EXPECT_FALSE(absent(label_column(group_bit(0), 0, -1), 2)) << "the column counts, not the label";
  EXPECT_TRUE(absent(label_column(group_bit(0), 0, 1), 1));
  EXPECT_FALSE(absent(label_column(), 2)) << "no group at all";
  EXPECT_FALSE(absent(label_column(group_bit(2)), 0)) << "groups without normaliser do not count";
  EXPECT_FALSE(absent(label_column(group_bit(3)), 0)) << "Bernoulli groups do not count";
  EXPECT_FALSE(absent(label_column(0, group_bit(0)), 2)) << "added groups do not count";
  EXPECT_FALSE(absent(fixed_column(position(3), group_bit(0)), 0)) << "fixed columns do not care";
  EXPECT_TRUE(absent(label_column(), -1)) << "u = U";
  EXPECT_FALSE(absent(fixed_column(position(3), group_bit(0)), -1));
}

TEST(ArcWeights, AnEmptyGroupMakesItsReadersAbsent) {
  VariantTable table = four_groups();
  for (Group& group : {std::ref(table.groups[0]), std::ref(table.groups[2])}) {
    group.end = group.begin + 1;
    group.exclude_label = true;
  }  // group 0 is {0} less the label, group 2 {2} less the label
  EXPECT_TRUE(column_is_absent(table, log_sum_column(2), 2, false));
  EXPECT_TRUE(column_is_absent(table, log_sum_column(2), 2, true)) << "log-sums are still computed";
  EXPECT_FALSE(column_is_absent(table, log_sum_column(2), 1, false));
  EXPECT_FALSE(column_is_absent(table, log_sum_column(2), -1, false));
  EXPECT_TRUE(column_is_absent(table, fixed_column(position(3), group_bit(0)), 0, false));
  EXPECT_TRUE(column_is_absent(table, fixed_column(position(3), 0, group_bit(0)), 0, false));
  EXPECT_FALSE(column_is_absent(table, fixed_column(position(3), group_bit(0)), 0, true))
      << "with log-probabilities the group is not read";
  EXPECT_FALSE(column_is_absent(table, fixed_column(position(3), group_bit(2)), 2, false))
      << "a group without normaliser is not read";
}

/// One arc (1, 1) that may finish, on one frame and one label with the four logits above.
double weight_of(const Arc& arc, const std::vector<Group>& groups, std::int64_t label,
                 bool from_log_probs = false, std::vector<double> logits = kLogits) {
  DenseBatch batch;
  set_name(batch.variant, "one arc");
  for (const Group& group : groups) add_group(batch.variant, group);
  add_arc(batch.variant, arc);
  batch.T = 1;
  batch.U = 1;
  batch.K = 4;
  batch.logits = std::move(logits);
  batch.logits.resize(8, kNaN);  // node (0, 1) is on no path
  batch.targets = {label};
  batch.from_log_probs = from_log_probs;
  const Outcome outcome = batch.run();
  EXPECT_TRUE(
      close({outcome.costs.data(), 1}, std::vector<double>{0.0 - outcome.arc_weights[0]}, 0.0));
  return outcome.arc_weights[0];
}

Arc diagonal(std::initializer_list<Column> columns) {
  Arc arc{.dt = 1, .du = 1, .may_finish = true};
  for (const Column& column : columns) arc.columns[arc.num_columns++] = column;
  return arc;
}

TEST(ArcWeights, AWeightIsTheSumOfItsParts) {
  EXPECT_NEAR(weight_of(diagonal({fixed_column(position(2))}), {}, 1), std::log(3.0), 1e-15);
  EXPECT_NEAR(weight_of(diagonal({label_column()}), {}, 1), std::log(2.0), 1e-15);
  EXPECT_NEAR(weight_of(diagonal({label_column(0, 0, 2)}), {}, 1), std::log(4.0), 1e-15);
  EXPECT_NEAR(weight_of(diagonal({fixed_column(position(2)), label_column()}), {}, 1),
              std::log(6.0), 1e-15);
  const Group all = columns(0, 4);
  EXPECT_NEAR(weight_of(diagonal({label_column(group_bit(0))}), {all}, 1), std::log(2.0 / 10),
              1e-15);
  EXPECT_NEAR(weight_of(diagonal({label_column(0, group_bit(0))}), {all}, 1), std::log(20.0),
              1e-15);
  EXPECT_NEAR(
      weight_of(diagonal({label_column(group_bit(0)), fixed_column(position(3), 0, 1)}), {all}, 1),
      std::log(8.0), 1e-14)
      << "subtracted by one column and added by the other";
  EXPECT_NEAR(weight_of(diagonal({log_sum_column(0)}), {columns(1, 4)}, 1), std::log(9.0), 1e-15)
      << "a log-sum ignores its group's normaliser";
  EXPECT_NEAR(weight_of(diagonal({log_sum_column(0, group_bit(1))}), {columns(1, 4), all}, 1),
              std::log(9.0 / 10), 1e-15);
  EXPECT_NEAR(weight_of(diagonal({log_sum_column(0, group_bit(1))}), {columns(1, 4), all}, 1, true),
              std::log(9.0), 1e-15)
      << "with log-probabilities every Z is 0 and log-sums are still computed";
}

TEST(ArcWeights, ConstantsAndFrameBonus) {
  Arc arc = diagonal({});
  arc.constant = {0.25, 2.0};
  EXPECT_NEAR(weight_of(arc, {}, 1), 0.25 + 2 * std::log(3.0), 1e-15) << "2 log(V - 1)";
  DenseBatch batch;
  set_name(batch.variant, "bonus");
  const Arc bonus = {.dt = 1, .du = 0, .frame_bonus = 0.5, .may_finish = true};
  add_arc(batch.variant, bonus);
  batch.B = 2;
  batch.T = 4;
  batch.logits.assign(16, 0.0);
  batch.frame_lengths = {4, 3};
  const Outcome outcome = batch.run();  // 0.5 ((T_b - 1) / 2 - t)
  EXPECT_TRUE(close(outcome.arc_weights,
                    std::vector<double>{0.75, 0.25, -0.25, -0.75, 0.5, 0.0, -0.5, -kInf}, 1e-15));
}

TEST(ArcWeights, InfiniteLogits) {
  const Group all = columns(0, 4);
  const std::vector<double> gone(4, -kInf);
  EXPECT_EQ(weight_of(diagonal({label_column(group_bit(0))}), {all}, 1, false, gone), -kInf);
  EXPECT_EQ(weight_of(diagonal({fixed_column(position(0), 0, group_bit(0))}), {columns(1, 4)}, 1,
                      false, {1.0, -kInf, -kInf, -kInf}),
            -kInf)
      << "adding the log-normaliser of nothing";
  EXPECT_NEAR(weight_of(diagonal({label_column(group_bit(0))}), {all}, 1, false,
                        {-kInf, 0.5, -kInf, -kInf}),
              0.0, 1e-15);
}

}  // namespace
}  // namespace transducer::testing
