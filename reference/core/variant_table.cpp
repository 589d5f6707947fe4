// SPDX-License-Identifier: Apache-2.0
#include "reference/core/variant_table.hpp"

#include <cmath>
#include <string>

#include "reference/core/error.hpp"

namespace transducer {
namespace {

std::string describe(Position position) {
  if (!position.from_vocabulary) return concat(position.offset);
  if (position.offset == 0) return "V";
  return position.offset < 0 ? concat("V - ", -position.offset) : concat("V + ", position.offset);
}

void check_group(const Group& group, const std::string& where) {
  if (group.begin.from_vocabulary == group.end.from_vocabulary) {
    check(group.begin.offset < group.end.offset, where, " covers columns ", describe(group.begin),
          " up to ", describe(group.end),
          ", which holds none; end is exclusive and must lie above begin");
  }
  if (group.normaliser != Normaliser::bernoulli) return;
  check(!group.exclude_fixed && !group.exclude_label, where,
        " is Bernoulli and excludes columns; a Bernoulli group has exactly one column and no "
        "exclusions");
  if (group.begin.from_vocabulary == group.end.from_vocabulary) {
    check(group.end.offset - group.begin.offset == 1, where, " is Bernoulli with ",
          group.end.offset - group.begin.offset,
          " columns; a Bernoulli group has exactly one, so make end = begin + 1");
  }
}

void check_column(const VariantTable& table, const Column& column, const std::string& where) {
  const std::uint8_t known = static_cast<std::uint8_t>((1u << table.num_groups) - 1u);
  check((column.subtract & ~known) == 0 && (column.add & ~known) == 0, where,
        " subtracts or adds a group that does not exist; the variant has ", table.num_groups,
        " group(s), numbered from 0");
  check((column.subtract & column.add) == 0, where,
        " both subtracts and adds the same group; name it in one of the two, or in neither");
  check(std::isfinite(column.grad_scale), where, " has grad_scale ", column.grad_scale,
        "; it must be a finite number (1 leaves the gradient alone)");
  if (column.kind != ColumnKind::log_sum) return;
  check(column.group >= 0 && column.group < table.num_groups, where, " is the log-sum of group ",
        column.group, ", which does not exist; the variant has ", table.num_groups,
        " group(s), numbered from 0");
  check(table.groups[column.group].normaliser != Normaliser::bernoulli, where,
        " is the log-sum of the Bernoulli group ", column.group,
        "; read that group's one column with a fixed column instead");
}

void check_arc(const VariantTable& table, const Arc& arc, const std::string& where) {
  check(arc.dt >= 0, where, " has dt = ", arc.dt,
        "; an arc cannot go back in time, so make dt >= 0");
  check(arc.du == 0 || arc.du == 1, where, " has du = ", arc.du,
        "; an arc emits no label (du = 0) or one (du = 1)");
  check(arc.dt + arc.du >= 1, where,
        " has dt = 0 and du = 0; an arc must move, so make dt >= 1 or du = 1");
  check(arc.num_columns >= 0 && arc.num_columns <= kMaxColumnsPerArc, where, " reads ",
        arc.num_columns, " columns; at most ", kMaxColumnsPerArc,
        " are possible (a log-sum of a group counts as one)");
  for (int i = 0; i < arc.num_columns; ++i) {
    check_column(table, arc.columns[i], concat(where, ", column ", i));
  }
  for (int g = 0; g < table.num_groups; ++g) {
    const int sign = normaliser_sign(arc, g);
    check(sign >= -1 && sign <= 1, where, " counts the normaliser of group ", g, " ", sign,
          " times; the sum over its columns must be -1, 0 or +1, so let only one column name the "
          "group");
  }
  check(std::isfinite(arc.constant.value) && std::isfinite(arc.constant.log_v1), where,
        " has a constant that is not finite; leave the arc out instead of giving it -inf");
  check(std::isfinite(arc.frame_bonus), where, " has frame_bonus ", arc.frame_bonus,
        "; it must be a finite number");
}

/// Makes one position absolute and checks it against [0, limit].
void bind_position(Position& position, std::int64_t vocabulary, std::int64_t limit,
                   std::int64_t columns, const std::string& where) {
  const std::string written = describe(position);
  if (position.from_vocabulary) position = {position.offset + vocabulary, false};
  check(position.offset >= 0 && position.offset <= limit, where, " ", written,
        position.offset == 0 || written == concat(position.offset) ? std::string()
                                                                   : concat(" = ", position.offset),
        ", expected a value from 0 to ", limit, " because the logits have K = ", columns,
        " columns (V = ", vocabulary, "). Is blank below V?");
}

}  // namespace

void check_table(const VariantTable& table) {
  check(table.name[0] != '\0', "a variant needs a name; give one, it appears in messages");
  const std::string prefix = concat("variant ", table.name, ": ");
  check(table.heads >= 0, prefix, "heads = ", table.heads,
        "; it is the number of logit columns after the vocabulary, so make it >= 0");
  check(table.num_arcs >= 1 && table.num_arcs <= kMaxArcs, prefix, table.num_arcs,
        " arcs; a variant has 1 to ", kMaxArcs);
  check(table.num_groups >= 0 && table.num_groups <= kMaxGroups, prefix, table.num_groups,
        " groups; a variant has at most ", kMaxGroups);
  for (int g = 0; g < table.num_groups; ++g) {
    check_group(table.groups[g], concat(prefix, "group ", g));
  }
  for (int a = 0; a < table.num_arcs; ++a) {
    check_arc(table, table.arcs[a], concat(prefix, "arc ", a));
  }
}

VariantTable bind_table(const VariantTable& table, std::int64_t columns, std::string_view caller) {
  check_table(table);
  const std::string prefix = concat(caller, ": variant ", table.name, ": ");
  const std::int64_t vocabulary = columns - table.heads;
  check(vocabulary >= 1, prefix, "the logits have K = ", columns, " columns, expected more than ",
        table.heads, " because ", table.heads,
        " of them are extra heads and V = K - heads must be >= 1");

  VariantTable bound = table;
  for (int g = 0; g < bound.num_groups; ++g) {
    Group& group = bound.groups[g];
    const std::string where = concat(prefix, "group ", g);
    bind_position(group.begin, vocabulary, columns, columns, where + " begins at");
    bind_position(group.end, vocabulary, columns, columns, where + " ends at");
    if (group.exclude_fixed) {
      bind_position(group.excluded, vocabulary, columns - 1, columns, where + " excludes column");
    }
    check_group(group, where);
  }
  for (int a = 0; a < bound.num_arcs; ++a) {
    Arc& arc = bound.arcs[a];
    for (int i = 0; i < arc.num_columns; ++i) {
      if (arc.columns[i].kind != ColumnKind::fixed) continue;
      bind_position(arc.columns[i].position, vocabulary, columns - 1, columns,
                    concat(prefix, "arc ", a, " reads column"));
    }
    if (arc.constant.log_v1 == 0.0) continue;
    check(vocabulary >= 2, prefix, "arc ", a,
          " has a constant with log(V - 1), expected V >= 2, got V = ", vocabulary);
    arc.constant = {
        arc.constant.value + arc.constant.log_v1 * std::log(static_cast<double>(vocabulary - 1)),
        0.0};
  }
  return bound;
}

}  // namespace transducer
