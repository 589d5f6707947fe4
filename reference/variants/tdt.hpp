// SPDX-License-Identifier: Apache-2.0
//
// Token-and-duration transducer (TDT). Xu, Jia, Majumdar, Huang, Watanabe, Ginsburg 2023,
// "Efficient sequence transduction by jointly predicting tokens and durations", arXiv 2304.06795.
// The logits are [V symbols | one column per duration], with a softmax over each part; column V + i
// is durations[i].
//
//   blank, d > 0 (d, 0): log p(blank) + log q(d)      label (d, 1): log p(next label) + log q(d)
//
// NeMo ends a path with a blank; the paper's equations also let a label land on t = T
// (`final_label`). Duration gradients are not clamped, as in NeMo.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/core/variant_table.hpp"
#include "reference/variants/durations.hpp"

namespace transducer {

/// Throws InvalidArgument unless `durations` has 1 to 16 entries of at least 0 frames.
inline VariantTable tdt(const std::vector<std::int64_t>& durations, Position blank,
                        bool final_label) {
  check_durations("tdt", durations, 0, kMaxArcs / 2);
  const auto heads = static_cast<int>(durations.size());
  VariantTable table;
  set_name(table, "tdt");
  table.heads = heads;
  const int symbols = add_group(table, {.begin = position(0), .end = vocabulary_plus(0)});
  const int lengths = add_group(
      table, {.begin = vocabulary_plus(0), .end = vocabulary_plus(heads), .clamp = false});

  const std::vector<int> order = ascending_order(durations);
  for (int i : order) {
    const auto duration = static_cast<int>(durations[static_cast<std::size_t>(i)]);
    if (duration == 0) continue;  // a blank must move
    add_arc(table, {.dt = duration,
                    .du = 0,
                    .num_columns = 2,
                    .columns = {fixed_column(blank, group_bit(symbols)),
                                fixed_column(vocabulary_plus(i), group_bit(lengths))},
                    .may_finish = true,
                    .kind = ArcKind::blank});
  }
  for (int i : order) {
    add_arc(table, {.dt = static_cast<int>(durations[static_cast<std::size_t>(i)]),
                    .du = 1,
                    .num_columns = 2,
                    .columns = {label_column(group_bit(symbols)),
                                fixed_column(vocabulary_plus(i), group_bit(lengths))},
                    .may_finish = final_label,
                    .kind = ArcKind::label});
  }
  return table;
}

}  // namespace transducer
