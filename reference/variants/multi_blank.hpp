// SPDX-License-Identifier: Apache-2.0
//
// Multi-blank transducer: blanks that skip several frames. Xu, Jia, Majumdar, Watanabe, Ginsburg
// 2022, "Multi-blank transducers for speech recognition", arXiv 2211.03541. One softmax over
// everything.
//
//   blank of duration d (d, 0): log p(blank_d)      label (0, 1): log p(next label)
//
// The standard blank has duration 1. Big blank i of `durations` is column blank - 1 - i, as in
// NeMo. A blank may end the path only by landing on t = T exactly.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/core/variant_table.hpp"
#include "reference/variants/durations.hpp"

namespace transducer {

/// Throws InvalidArgument unless `durations` has 1 to 30 entries of at least 1 frame.
inline VariantTable multi_blank(const std::vector<std::int64_t>& durations, Position blank) {
  check_durations("multi_blank", durations, 1, kMaxArcs - 2);
  VariantTable table;
  set_name(table, "multi_blank");
  const int vocabulary = add_group(table, {.begin = position(0), .end = vocabulary_plus(0)});

  std::vector<std::int64_t> all = {1};  // standard blank first: it wins ties of the sort
  all.insert(all.end(), durations.begin(), durations.end());
  for (int i : ascending_order(all)) {
    add_arc(table, {.dt = static_cast<int>(all[static_cast<std::size_t>(i)]),
                    .du = 0,
                    .num_columns = 1,
                    .columns = {fixed_column(blank - i, group_bit(vocabulary))},
                    .may_finish = true,
                    .kind = ArcKind::blank});
  }
  add_arc(table, {.dt = 0,
                  .du = 1,
                  .num_columns = 1,
                  .columns = {label_column(group_bit(vocabulary))},
                  .kind = ArcKind::label});
  return table;
}

}  // namespace transducer
