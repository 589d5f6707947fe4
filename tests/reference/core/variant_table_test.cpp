// SPDX-License-Identifier: Apache-2.0
//
// Every rule of check_table and bind_table: that it fires, with its message, and that the nearest
// legal value passes.
#include "reference/core/variant_table.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include "tests/support/messages.hpp"

namespace transducer {
namespace {

using testing::throws;

/// One softmax over the vocabulary, a blank and a label: legal.
VariantTable legal() {
  VariantTable table;
  set_name(table, "mine");
  add_group(table, {.begin = position(0), .end = vocabulary_plus(0)});
  add_arc(table, {.dt = 1,
                  .num_columns = 1,
                  .columns = {fixed_column(position(0), group_bit(0))},
                  .may_finish = true});
  add_arc(table, {.du = 1, .num_columns = 1, .columns = {label_column(group_bit(0))}});
  return table;
}

/// Expects check_table to refuse `table` with a message that begins with `pattern`.
::testing::AssertionResult refused(const VariantTable& table, const std::string& pattern) {
  return throws([&] { check_table(table); }, "^" + pattern);
}

TEST(VariantTable, ALegalTablePasses) { EXPECT_NO_THROW(check_table(legal())); }

TEST(VariantTable, NeedsAName) {
  VariantTable table = legal();
  set_name(table, "");
  EXPECT_TRUE(refused(table, "a variant needs a name; give one"));
  set_name(table, std::string(60, 'x'));
  EXPECT_NO_THROW(check_table(table));
  EXPECT_EQ(std::string(table.name), std::string(47, 'x'));
}

TEST(VariantTable, HeadsAreNotNegative) {
  VariantTable table = legal();
  table.heads = -1;
  EXPECT_TRUE(refused(table, "variant mine: heads = -1; .* make it >= 0"));
  table.heads = 0;
  EXPECT_NO_THROW(check_table(table));
}

TEST(VariantTable, HasOneToThirtyTwoArcs) {
  VariantTable table = legal();
  table.num_arcs = 0;
  EXPECT_TRUE(refused(table, "variant mine: 0 arcs; a variant has 1 to 32"));
  table.num_arcs = 33;
  EXPECT_TRUE(refused(table, "variant mine: 33 arcs"));
  table.num_arcs = 32;
  for (Arc& arc : table.arcs) arc.dt = 1;
  EXPECT_NO_THROW(check_table(table));
}

TEST(VariantTable, HasAtMostFourGroups) {
  VariantTable table = legal();
  for (Group& group : table.groups) group = table.groups[0];
  table.num_groups = 4;
  EXPECT_NO_THROW(check_table(table));
  table.num_groups = 5;
  EXPECT_TRUE(refused(table, "variant mine: 5 groups; a variant has at most 4"));
  table.num_groups = -1;
  EXPECT_TRUE(refused(table, "variant mine: -1 groups"));
}

TEST(VariantTable, GroupsHoldColumns) {
  VariantTable table = legal();
  table.groups[0] = {.begin = position(3), .end = position(3)};
  EXPECT_TRUE(refused(table, "variant mine: group 0 covers columns 3 up to 3, which holds none"));
  table.groups[0] = {.begin = vocabulary_plus(-1), .end = vocabulary_plus(-2)};
  EXPECT_TRUE(refused(table, "variant mine: group 0 covers columns V - 1 up to V - 2"));
  table.groups[0] = {.begin = vocabulary_plus(0), .end = vocabulary_plus(0)};
  EXPECT_TRUE(refused(table, "variant mine: group 0 covers columns V up to V,"));
  table.groups[0] = {.begin = position(3), .end = position(4)};
  EXPECT_NO_THROW(check_table(table));
  table.groups[0] = {.begin = position(3), .end = vocabulary_plus(-9)};  // told when bound
  EXPECT_NO_THROW(check_table(table));
}

TEST(VariantTable, BernoulliGroupsHaveOneColumnAndNoExclusion) {
  VariantTable table = legal();
  Group& group = table.groups[0];
  group = {.begin = position(1), .end = position(2), .normaliser = Normaliser::bernoulli};
  EXPECT_NO_THROW(check_table(table));
  group.end = position(3);
  EXPECT_TRUE(refused(table, "variant mine: group 0 is Bernoulli with 2 columns; .*end = begin"));
  group.end = position(2);
  group.exclude_label = true;
  EXPECT_TRUE(refused(table, "variant mine: group 0 is Bernoulli and excludes columns"));
  group.exclude_label = false;
  group.exclude_fixed = true;
  EXPECT_TRUE(refused(table, "variant mine: group 0 is Bernoulli and excludes columns"));
}

TEST(VariantTable, ArcsMoveForwardByAtMostOneLabel) {
  VariantTable table = legal();
  Arc& arc = table.arcs[1];
  arc.dt = -1;
  EXPECT_TRUE(refused(table, "variant mine: arc 1 has dt = -1; an arc cannot go back in time"));
  arc.dt = 0;
  arc.du = 2;
  EXPECT_TRUE(refused(table, "variant mine: arc 1 has du = 2; .* no label .* or one"));
  arc.du = -1;
  EXPECT_TRUE(refused(table, "variant mine: arc 1 has du = -1"));
  arc.du = 0;
  EXPECT_TRUE(refused(table, "variant mine: arc 1 has dt = 0 and du = 0; an arc must move"));
  arc.dt = 1;
  EXPECT_NO_THROW(check_table(table));
  arc.du = 1;
  EXPECT_NO_THROW(check_table(table));
}

TEST(VariantTable, ArcsReadAtMostTwoColumns) {
  VariantTable table = legal();
  Arc& arc = table.arcs[0];
  arc.columns[1] = label_column();
  arc.num_columns = 2;
  EXPECT_NO_THROW(check_table(table));
  arc.num_columns = 3;
  EXPECT_TRUE(refused(table, "variant mine: arc 0 reads 3 columns; at most 2"));
  arc.num_columns = -1;
  EXPECT_TRUE(refused(table, "variant mine: arc 0 reads -1 columns"));
  arc.num_columns = 0;
  EXPECT_NO_THROW(check_table(table));
}

TEST(VariantTable, ColumnsNameGroupsThatExistOnce) {
  VariantTable table = legal();
  Column& column = table.arcs[0].columns[0];
  column.subtract = group_bit(1);
  EXPECT_TRUE(refused(table,
                      "variant mine: arc 0, column 0 subtracts or adds a group that does "
                      "not exist; the variant has 1 group"));
  column.subtract = 0;
  column.add = group_bit(3);
  EXPECT_TRUE(refused(table, "variant mine: arc 0, column 0 subtracts or adds a group that"));
  column.add = column.subtract = group_bit(0);
  EXPECT_TRUE(refused(table, "variant mine: arc 0, column 0 both subtracts and adds the same"));
  column.subtract = 0;
  EXPECT_NO_THROW(check_table(table));
}

TEST(VariantTable, NormalisersCountOnceAtMost) {
  VariantTable table = legal();
  Arc& arc = table.arcs[1];
  arc.num_columns = 2;
  arc.columns[1] = fixed_column(position(0), group_bit(0));
  EXPECT_TRUE(refused(table, "variant mine: arc 1 counts the normaliser of group 0 -2 times"));
  arc.columns[0] = label_column(0, group_bit(0));
  EXPECT_EQ(normaliser_sign(arc, 0), 0);
  EXPECT_NO_THROW(check_table(table));
  arc.columns[1] = fixed_column(position(0), 0, group_bit(0));
  EXPECT_EQ(normaliser_sign(arc, 0), 2);
  EXPECT_TRUE(refused(table, "variant mine: arc 1 counts the normaliser of group 0 2 times"));
}

TEST(VariantTable, LogSumsReadASoftmaxOrPlainGroup) {
  VariantTable table = legal();
  Column& column = table.arcs[0].columns[0];
  column = log_sum_column(0, group_bit(0));
  EXPECT_NO_THROW(check_table(table));
  column.group = 1;
  EXPECT_TRUE(
      refused(table, "variant mine: arc 0, column 0 is the log-sum of group 1, which does"));
  column.group = -1;
  EXPECT_TRUE(refused(table, "variant mine: arc 0, column 0 is the log-sum of group -1"));
  column.group = 0;
  table.groups[0].normaliser = Normaliser::none;
  EXPECT_NO_THROW(check_table(table));
  table.groups[0] = {.begin = position(0), .end = position(1), .normaliser = Normaliser::bernoulli};
  EXPECT_TRUE(refused(table, "variant mine: arc 0, column 0 is the log-sum of the Bernoulli gr"));
}

TEST(VariantTable, NumbersAreFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {infinity, -infinity, std::nan("")}) {
    VariantTable table = legal();
    table.arcs[0].constant.value = bad;
    EXPECT_TRUE(refused(table, "variant mine: arc 0 has a constant that is not finite"));
    table = legal();
    table.arcs[1].constant.log_v1 = bad;
    EXPECT_TRUE(refused(table, "variant mine: arc 1 has a constant that is not finite"));
    table = legal();
    table.arcs[0].frame_bonus = bad;
    EXPECT_TRUE(refused(table, "variant mine: arc 0 has frame_bonus .*finite"));
    table = legal();
    table.arcs[1].columns[0].grad_scale = bad;
    EXPECT_TRUE(refused(table, "variant mine: arc 1, column 0 has grad_scale .*finite"));
  }
}

TEST(VariantTable, BindingMakesPositionsAndConstantsNumbers) {
  VariantTable table = legal();
  table.heads = 2;
  table.groups[0] = {.begin = vocabulary_plus(-4),
                     .end = vocabulary_plus(2),
                     .exclude_fixed = true,
                     .excluded = position(-1)};
  table.arcs[0].columns[0].position = vocabulary_plus(1);
  table.arcs[0].constant = {0.5, -2.0};
  const VariantTable bound = bind_table(table, 7, "ft.loss");  // V = 5
  EXPECT_EQ(bound.groups[0].begin, (Position{1, false}));
  EXPECT_EQ(bound.groups[0].end, (Position{7, false}));
  EXPECT_EQ(bound.groups[0].excluded, (Position{4, false}));
  EXPECT_EQ(bound.arcs[0].columns[0].position, (Position{6, false}));
  EXPECT_EQ(bound.arcs[0].constant, (Constant{0.5 - 2.0 * std::log(4.0), 0.0}));
  EXPECT_EQ(bind_table(bound, 7, "ft.loss"), bound);
}

TEST(VariantTable, BindingRefusesColumnsThatDoNotExist) {
  const auto refuses = [](const VariantTable& table, std::int64_t columns, const char* pattern) {
    return throws([&] { bind_table(table, columns, "ft.loss"); },
                  std::string("^ft.loss: variant mine: ") + pattern);
  };
  VariantTable table = legal();
  table.heads = 3;
  EXPECT_TRUE(refuses(table, 3, "the logits have K = 3 columns, expected more than 3"));
  EXPECT_NO_THROW(bind_table(table, 4, "ft.loss"));

  table = legal();
  table.arcs[0].columns[0].position = position(5);
  EXPECT_TRUE(refuses(table, 5, "arc 0 reads column 5, expected a value from 0 to 4 .*K = 5"));
  EXPECT_NO_THROW(bind_table(table, 6, "ft.loss"));
  table.arcs[0].columns[0].position = position(-3);
  EXPECT_TRUE(refuses(table, 2, "arc 0 reads column V - 3 = -1, expected .*Is blank below V"));
  EXPECT_NO_THROW(bind_table(table, 3, "ft.loss"));

  table = legal();
  table.groups[0] = {.begin = vocabulary_plus(-3), .end = vocabulary_plus(0)};
  EXPECT_TRUE(refuses(table, 2, "group 0 begins at V - 3 = -1"));
  EXPECT_NO_THROW(bind_table(table, 3, "ft.loss"));
  table.groups[0] = {.begin = position(0), .end = vocabulary_plus(1)};
  EXPECT_TRUE(refuses(table, 2, "group 0 ends at V \\+ 1 = 3, expected a value from 0 to 2"));
  table.heads = 1;
  EXPECT_NO_THROW(bind_table(table, 3, "ft.loss"));

  table = legal();
  table.groups[0].exclude_fixed = true;
  table.groups[0].excluded = position(4);
  EXPECT_TRUE(refuses(table, 4, "group 0 excludes column 4, expected a value from 0 to 3"));
  EXPECT_NO_THROW(bind_table(table, 5, "ft.loss"));
}

TEST(VariantTable, BindingRefusesGroupsThatTurnOutWrong) {
  VariantTable table = legal();
  table.groups[0] = {.begin = position(2), .end = vocabulary_plus(0)};
  EXPECT_TRUE(throws([&] { bind_table(table, 2, "ft.loss"); },
                     "^ft.loss: variant mine: group 0 covers columns 2 up to 2, which holds none"));
  EXPECT_NO_THROW(bind_table(table, 3, "ft.loss"));
  table.groups[0].normaliser = Normaliser::bernoulli;
  EXPECT_NO_THROW(bind_table(table, 3, "ft.loss"));
  EXPECT_TRUE(throws([&] { bind_table(table, 4, "ft.loss"); },
                     "^ft.loss: variant mine: group 0 is Bernoulli with 2 columns"));
}

TEST(VariantTable, LogOfVLessOneNeedsTwoSymbols) {
  VariantTable table = legal();
  table.arcs[1].constant.log_v1 = 1.0;
  EXPECT_TRUE(throws([&] { bind_table(table, 1, "ft.loss"); },
                     "^ft.loss: variant mine: arc 1 has a constant with log\\(V - 1\\), expected "
                     "V >= 2, got V = 1"));
  EXPECT_EQ(bind_table(table, 2, "ft.loss").arcs[1].constant.value, 0.0);
}

TEST(VariantTable, GroupsContainARangeLessItsExclusions) {
  const Group group = {.begin = position(1),
                       .end = position(5),
                       .exclude_fixed = true,
                       .excluded = position(2),
                       .exclude_label = true};
  std::string members;
  for (int k = 0; k < 7; ++k) members += group_contains(group, k, 3) ? '1' : '0';
  EXPECT_EQ(members, "0100100");
  EXPECT_TRUE(group_contains(group, 3, -1));  // no next label: nothing excluded for it
}

TEST(VariantTable, IsAPlainValue) {
  static_assert(std::is_trivially_copyable_v<VariantTable>);
  EXPECT_EQ(position(-1), vocabulary_plus(-1));
  EXPECT_EQ(position(3) + 2, position(5));
  EXPECT_EQ(vocabulary_plus(1) - 3, vocabulary_plus(-2));
  VariantTable other = legal();
  EXPECT_EQ(other, legal());
  other.arcs[1].columns[0].grad_scale = 2.0;
  EXPECT_NE(other, legal());
}

}  // namespace
}  // namespace transducer
