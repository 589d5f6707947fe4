// SPDX-License-Identifier: Apache-2.0
#include "reference/core/tap_plan.hpp"

#include <gtest/gtest.h>

namespace transducer {
namespace {

/// Softmax over all of V; blank last.
VariantTable rnnt_table(std::int64_t columns) {
  VariantTable table;
  set_name(table, "plain");
  const int all = add_group(table, {.begin = position(0), .end = vocabulary_plus(0)});
  add_arc(table, {.dt = 1,
                  .du = 0,
                  .num_columns = 1,
                  .columns = {fixed_column(position(-1), group_bit(all))},
                  .may_finish = true});
  add_arc(table, {.dt = 0,
                  .du = 1,
                  .num_columns = 1,
                  .columns = {label_column(group_bit(all))},
                  .kind = ArcKind::label});
  return bind_table(table, columns, "test");
}

TEST(TapPlan, PlainTransducer) {
  const TapPlan plan = make_tap_plan(rnnt_table(5), false);
  EXPECT_EQ(plan.num_arcs, 2);
  EXPECT_EQ(plan.num_groups, 1);
  EXPECT_EQ(plan.num_fixed, 1);
  EXPECT_EQ(plan.num_taps, 2);
  EXPECT_EQ(plan.fixed[0], 4);
  EXPECT_EQ(plan.tap_column(0, 3), 4);  // the blank, whatever the label
  EXPECT_EQ(plan.tap_column(1, 3), 3);
  EXPECT_EQ(plan.arcs[0].columns[0].tap, 0);
  EXPECT_EQ(plan.arcs[1].columns[0].tap, 1);
  EXPECT_FALSE(plan.arcs[0].reads_label);
  EXPECT_TRUE(plan.arcs[1].reads_label);
  EXPECT_TRUE(plan.arcs[0].may_finish);
  EXPECT_EQ(plan.arcs[0].columns[0].subtract, 1);
  EXPECT_EQ(plan.read_groups, 1);
  EXPECT_EQ(plan.max_dt, 1);
  EXPECT_EQ(plan.gain, 2.0);  // one column and one Z
  EXPECT_FALSE(plan.depends_on_label);
  EXPECT_EQ(plan.unclamped_groups, 0);
}

TEST(TapPlan, LogProbabilitiesNeedNoLogSum) {
  const TapPlan plan = make_tap_plan(rnnt_table(5), true);
  EXPECT_EQ(plan.read_groups, 0);
  EXPECT_EQ(plan.arcs[0].columns[0].subtract, 0);
  EXPECT_EQ(plan.gain, 1.0);
}

TEST(TapPlan, SharedColumnsAreOneTap) {
  VariantTable table;
  set_name(table, "shared");
  add_group(table, {.begin = position(0), .end = position(3)});
  add_group(table, {.begin = position(3), .end = position(5), .normaliser = Normaliser::none});
  Column scaled = label_column(group_bit(0));
  scaled.grad_scale = -1.5;
  add_arc(table, {.dt = 1,
                  .du = 0,
                  .num_columns = 2,
                  .columns = {fixed_column(position(2), group_bit(0)), fixed_column(position(3))}});
  add_arc(table, {.dt = 4,
                  .du = 1,
                  .num_columns = 2,
                  .columns = {scaled, fixed_column(position(3), group_bit(1))}});
  add_arc(table, {.dt = 0,
                  .du = 1,
                  .num_columns = 2,
                  .columns = {label_column(0, 0, 2), label_column()},
                  .constant = {-0.5, 0.0}});
  const TapPlan plan = make_tap_plan(bind_table(table, 6, "test"), false);
  EXPECT_EQ(plan.num_fixed, 2);  // columns 2 and 3
  EXPECT_EQ(plan.num_taps, 4);   // label, label + 2
  EXPECT_EQ(plan.arcs[0].columns[1].tap, plan.arcs[1].columns[1].tap);
  EXPECT_EQ(plan.arcs[1].columns[0].tap, plan.arcs[2].columns[1].tap);
  EXPECT_EQ(plan.tap_column(plan.arcs[2].columns[0].tap, 1), 3);
  EXPECT_EQ(plan.arcs[1].columns[1].subtract, 0) << "Z of a group without normaliser is 0";
  EXPECT_EQ(plan.arcs[2].constant, -0.5);
  EXPECT_EQ(plan.max_dt, 4);
  EXPECT_EQ(plan.read_groups, group_bit(0));
  EXPECT_EQ(plan.gain, 4.0);  // arc 1: 1.5 (1 + 1) + 1
}

TEST(TapPlan, LogSumsAreNoTaps) {
  VariantTable table;
  set_name(table, "sums");
  add_group(table, {.begin = position(0), .end = vocabulary_plus(0)});
  add_group(table, {.begin = position(0),
                    .end = vocabulary_plus(0),
                    .exclude_fixed = true,
                    .excluded = position(0),
                    .exclude_label = true,
                    .normaliser = Normaliser::none,
                    .clamp = false});
  add_arc(table, {.dt = 0,
                  .du = 1,
                  .num_columns = 1,
                  .columns = {log_sum_column(1, group_bit(0))},
                  .kind = ArcKind::skip});
  const TapPlan plan = make_tap_plan(bind_table(table, 4, "test"), true);
  EXPECT_EQ(plan.num_taps, 0);
  EXPECT_EQ(plan.arcs[0].columns[0].tap, -1);
  EXPECT_EQ(plan.arcs[0].columns[0].log_sum, 1);
  EXPECT_EQ(plan.read_groups, group_bit(1)) << "log-sums are read from log probabilities too";
  EXPECT_EQ(plan.unclamped_groups, group_bit(1));
  EXPECT_TRUE(plan.depends_on_label);
  EXPECT_FALSE(plan.arcs[0].reads_label);
}

TEST(ArcsForLabel, LabelArcsEndWithTheLabels) {
  const VariantTable table = rnnt_table(5);
  EXPECT_EQ(arcs_for_label(table, 2, false), 0b11u);
  EXPECT_EQ(arcs_for_label(table, 4, false), 0b11u) << "a label equal to blank is legal";
  EXPECT_EQ(arcs_for_label(table, -1, false), 0b01u);
}

TEST(ArcsForLabel, ALabelOutsideEverySoftmaxItSubtractsHasNoArc) {
  VariantTable table;
  set_name(table, "outside");
  add_group(
      table,
      {.begin = position(0), .end = position(3), .exclude_fixed = true, .excluded = position(1)});
  add_group(table, {.begin = position(3), .end = position(4), .normaliser = Normaliser::bernoulli});
  const auto both = static_cast<std::uint8_t>(group_bit(0) | group_bit(1));
  add_arc(table, {.dt = 0, .du = 1, .num_columns = 1, .columns = {label_column(group_bit(0))}});
  add_arc(table, {.dt = 0, .du = 1, .num_columns = 1, .columns = {label_column(both)}});
  add_arc(table, {.dt = 0, .du = 1, .num_columns = 1, .columns = {label_column(group_bit(1))}});
  add_arc(table, {.dt = 0, .du = 1, .num_columns = 1, .columns = {label_column(0, group_bit(0))}});
  const VariantTable bound = bind_table(table, 6, "test");
  for (bool from_log_probs : {false, true}) {  // changes nothing here
    EXPECT_EQ(arcs_for_label(bound, 0, from_log_probs), 0b1111u);
    EXPECT_EQ(arcs_for_label(bound, 1, from_log_probs), 0b1100u) << "excluded";
    EXPECT_EQ(arcs_for_label(bound, 3, from_log_probs), 0b1100u) << "a Bernoulli does not count";
    EXPECT_EQ(arcs_for_label(bound, 5, from_log_probs), 0b1100u);
  }
}

TEST(ArcsForLabel, GroupsWithoutColumns) {
  VariantTable table;
  set_name(table, "empty");
  // Columns 0 and 1 less column 0 and less the label.
  add_group(table, {.begin = position(0),
                    .end = position(2),
                    .exclude_fixed = true,
                    .excluded = position(0),
                    .exclude_label = true});
  add_arc(table, {.dt = 1, .du = 0, .num_columns = 1, .columns = {log_sum_column(0)}});
  add_arc(
      table,
      {.dt = 1, .du = 0, .num_columns = 1, .columns = {fixed_column(position(3), group_bit(0))}});
  add_arc(table, {.dt = 1, .du = 0, .num_columns = 1, .columns = {fixed_column(position(3))}});
  const VariantTable bound = bind_table(table, 4, "test");
  EXPECT_EQ(arcs_for_label(bound, 1, false), 0b100u) << "nothing is left of the group";
  EXPECT_EQ(arcs_for_label(bound, 0, false), 0b111u) << "both exclusions are column 0";
  EXPECT_EQ(arcs_for_label(bound, 2, false), 0b111u);
  EXPECT_EQ(arcs_for_label(bound, -1, false), 0b111u) << "no label, nothing excluded for it";
  EXPECT_EQ(arcs_for_label(bound, 1, true), 0b110u) << "Z is 0, the log-sum still is computed";
}

}  // namespace
}  // namespace transducer
