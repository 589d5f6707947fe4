// SPDX-License-Identifier: Apache-2.0
#include "reference/core/tap_plan.hpp"

#include <algorithm>
#include <cmath>

namespace transducer {
namespace {

/// Index of `value` in the first `count` entries, appended if it is new.
int find_or_append(std::int64_t* values, int& count, std::int64_t value) {
  std::int64_t* end = values + count;
  std::int64_t* found = std::find(values, end, value);
  if (found == end) values[count++] = value;
  return static_cast<int>(found - values);
}

std::uint8_t constant_groups(const VariantTable& table, bool from_log_probs) {
  std::uint8_t mask = 0;
  for (int g = 0; g < table.num_groups; ++g) {
    if (from_log_probs || table.groups[g].normaliser == Normaliser::none) mask |= group_bit(g);
  }
  return mask;
}

}  // namespace

int count_taps(const VariantTable& table) {
  const auto same = [](const Column& a, const Column& b) {
    return a.kind == b.kind && (a.kind == ColumnKind::fixed ? a.position == b.position
                                                            : a.label_offset == b.label_offset);
  };
  Column taps[kMaxTaps];
  int count = 0;
  for (int a = 0; a < table.num_arcs; ++a) {
    for (int i = 0; i < table.arcs[a].num_columns; ++i) {
      const Column& column = table.arcs[a].columns[i];
      if (column.kind == ColumnKind::log_sum) continue;
      const bool known =
          std::any_of(taps, taps + count, [&](const Column& tap) { return same(tap, column); });
      if (!known) taps[count++] = column;
    }
  }
  return count;
}

TapPlan make_tap_plan(const VariantTable& bound, bool from_log_probs) {
  TapPlan plan;
  plan.num_arcs = bound.num_arcs;
  plan.num_groups = bound.num_groups;
  std::copy_n(bound.groups, kMaxGroups, plan.groups);
  const std::uint8_t constant = constant_groups(bound, from_log_probs);
  int num_label = 0;
  for (int pass = 0; pass < 2; ++pass) {  // fixed taps first, so that label taps follow them
    for (int a = 0; a < bound.num_arcs; ++a) {
      for (int i = 0; i < bound.arcs[a].num_columns; ++i) {
        const Column& column = bound.arcs[a].columns[i];
        int& tap = plan.arcs[a].columns[i].tap;
        if (pass == 0 && column.kind == ColumnKind::fixed) {
          tap = find_or_append(plan.fixed, plan.num_fixed, column.position.offset);
        } else if (pass == 1 && column.kind == ColumnKind::label) {
          tap = plan.num_fixed + find_or_append(plan.label_offsets, num_label, column.label_offset);
        }
      }
    }
  }
  plan.num_taps = plan.num_fixed + num_label;

  for (int a = 0; a < bound.num_arcs; ++a) {
    const Arc& arc = bound.arcs[a];
    PlannedArc& planned = plan.arcs[a];
    planned.dt = arc.dt;
    planned.du = arc.du;
    planned.may_finish = arc.may_finish;
    planned.num_columns = arc.num_columns;
    planned.constant = arc.constant.value;
    planned.frame_bonus = arc.frame_bonus;
    plan.max_dt = std::max(plan.max_dt, arc.dt);
    double gain = 0.0;
    for (int i = 0; i < arc.num_columns; ++i) {
      const Column& column = arc.columns[i];
      PlannedColumn& out = planned.columns[i];
      out.subtract = static_cast<std::uint8_t>(column.subtract & ~constant);
      out.add = static_cast<std::uint8_t>(column.add & ~constant);
      out.grad_scale = column.grad_scale;
      planned.reads_groups |= out.subtract | out.add;
      if (column.kind == ColumnKind::log_sum) {
        out.log_sum = column.group;
        planned.reads_groups |= group_bit(column.group);
      }
      planned.reads_label = planned.reads_label || column.kind == ColumnKind::label;
      const int normalisers = __builtin_popcount(out.subtract) + __builtin_popcount(out.add);
      gain += std::abs(column.grad_scale) * (1.0 + normalisers);
    }
    plan.gain = std::max(plan.gain, gain);
    plan.read_groups |= planned.reads_groups;
  }
  for (int g = 0; g < bound.num_groups; ++g) {
    if (!bound.groups[g].clamp) plan.unclamped_groups |= group_bit(g);
    plan.depends_on_label = plan.depends_on_label || bound.groups[g].exclude_label;
  }
  return plan;
}

}  // namespace transducer
