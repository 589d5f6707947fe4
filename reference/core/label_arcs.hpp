// SPDX-License-Identifier: Apache-2.0
//
// Which arcs may exist at a node, as far as its next label decides it. Host and device: where labels lie on a
// device, the device asks.
#pragma once

#include <cstdint>

#include "reference/core/variant_table.hpp"

namespace transducer {

namespace detail {

TX_HD inline bool group_is_empty(const Group& group, std::int64_t label) {
  std::int64_t columns = group.end.offset - group.begin.offset;
  const bool excludes_label =
      group.exclude_label && group.begin.offset <= label && label < group.end.offset;
  const bool excludes_fixed = group.exclude_fixed && group.begin.offset <= group.excluded.offset &&
                              group.excluded.offset < group.end.offset;
  columns -= excludes_label ? 1 : 0;
  columns -= excludes_fixed && !(excludes_label && label == group.excluded.offset) ? 1 : 0;
  return columns <= 0;
}

TX_HD inline bool column_exists(const VariantTable& table, const Column& column, std::int64_t label,
                                bool from_log_probs) {
  if (column.kind == ColumnKind::label && label < 0) return false;
  if (column.kind == ColumnKind::log_sum && group_is_empty(table.groups[column.group], label)) {
    return false;
  }
  bool subtracts_softmax = false;
  bool inside = false;
  for (int g = 0; g < table.num_groups; ++g) {
    const Group& group = table.groups[g];
    if (((column.subtract | column.add) & group_bit(g)) == 0) continue;
    if (group.normaliser != Normaliser::softmax) continue;
    if (!from_log_probs && group_is_empty(group, label)) return false;
    if ((column.subtract & group_bit(g)) == 0) continue;
    subtracts_softmax = true;
    inside = inside || group_contains(group, label + column.label_offset, label);
  }
  return column.kind != ColumnKind::label || !subtracts_softmax || inside;
}

}  // namespace detail

/// Bit a is set if arc a may exist at a node whose next label is `label` (-1 at u = U), as far as the
/// label and the groups' columns decide it: not where it needs a label and there is none, nor where its
/// label lies in none of the softmax groups it subtracts, nor where a group it reads has no column.
TX_HD inline std::uint32_t arcs_for_label(const VariantTable& bound, std::int64_t label,
                                          bool from_log_probs) {
  std::uint32_t mask = 0;
  for (int a = 0; a < bound.num_arcs; ++a) {
    bool exists = true;
    for (int i = 0; i < bound.arcs[a].num_columns; ++i) {
      exists =
          exists && detail::column_exists(bound, bound.arcs[a].columns[i], label, from_log_probs);
    }
    if (exists) mask |= std::uint32_t{1} << a;
  }
  return mask;
}

}  // namespace transducer
