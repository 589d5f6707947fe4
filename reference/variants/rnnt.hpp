// SPDX-License-Identifier: Apache-2.0
//
// RNN-T, the regular transducer. Graves 2012, "Sequence transduction with recurrent neural
// networks", arXiv 1211.3711. p = softmax over the vocabulary.
//
//   blank (1, 0): log p(blank)      label (0, 1): log p(next label)
//
// A path ends with a blank that leaves the last frame.
#pragma once

#include "reference/core/variant_table.hpp"

namespace transducer {

constexpr VariantTable rnnt(Position blank) {
  VariantTable table;
  set_name(table, "rnnt");
  const int vocabulary = add_group(table, {.begin = position(0), .end = vocabulary_plus(0)});
  add_arc(table, {.dt = 1,
                  .du = 0,
                  .num_columns = 1,
                  .columns = {fixed_column(blank, group_bit(vocabulary))},
                  .may_finish = true,
                  .kind = ArcKind::blank});
  add_arc(table, {.dt = 0,
                  .du = 1,
                  .num_columns = 1,
                  .columns = {label_column(group_bit(vocabulary))},
                  .kind = ArcKind::label});
  return table;
}

}  // namespace transducer
