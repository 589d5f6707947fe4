// SPDX-License-Identifier: Apache-2.0
//
// Monotonic RNN-T: one symbol per frame. Tripathi, Lu, Sak, Soltau 2019, "Monotonic recurrent
// neural network transducer and decoding strategies" (ASRU); the recurrent neural aligner of Sak et
// al. 2017; k2's rnnt_type "modified".
//
//   blank (1, 0): log p(blank)      label (1, 1): log p(next label)
//
// With `final_label` (k2, monotonic-rnnt) the last frame may emit a label; without it
// (optimized_transducer's one_sym_per_frame) the last frame is a blank.
#pragma once

#include "reference/core/variant_table.hpp"

namespace transducer {

constexpr VariantTable monotonic(Position blank, bool final_label) {
  VariantTable table;
  set_name(table, "monotonic");
  const int vocabulary = add_group(table, {.begin = position(0), .end = vocabulary_plus(0)});
  add_arc(table, {.dt = 1,
                  .du = 0,
                  .num_columns = 1,
                  .columns = {fixed_column(blank, group_bit(vocabulary))},
                  .may_finish = true,
                  .kind = ArcKind::blank});
  add_arc(table, {.dt = 1,
                  .du = 1,
                  .num_columns = 1,
                  .columns = {label_column(group_bit(vocabulary))},
                  .may_finish = final_label,
                  .kind = ArcKind::label});
  return table;
}

}  // namespace transducer
