// SPDX-License-Identifier: Apache-2.0
//
// Hybrid autoregressive transducer (HAT): blank is a Bernoulli decision of its own, labels share a
// softmax. Variani, Rybach, Allauzen, Riley 2020, "Hybrid autoregressive transducer (HAT)",
// arXiv 2003.07705. b = sigmoid(x_blank), p = softmax over everything but blank.
//
//   blank (1, 0): log b = x_blank - softplus(x_blank)
//   label (0, 1): log(1 - b) + log p(next label) = x_label - Z_labels - softplus(x_blank)
//
// A label equal to blank lies outside the label softmax, so its arc is absent.
#pragma once

#include "reference/core/variant_table.hpp"

namespace transducer {

constexpr VariantTable hat(Position blank) {
  VariantTable table;
  set_name(table, "hat");
  const int decision =
      add_group(table, {.begin = blank, .end = blank + 1, .normaliser = Normaliser::bernoulli});
  const int labels = add_group(
      table,
      {.begin = position(0), .end = vocabulary_plus(0), .exclude_fixed = true, .excluded = blank});
  const auto both = static_cast<std::uint8_t>(group_bit(decision) | group_bit(labels));
  add_arc(table, {.dt = 1,
                  .du = 0,
                  .num_columns = 1,
                  .columns = {fixed_column(blank, group_bit(decision))},
                  .may_finish = true,
                  .kind = ArcKind::blank});
  add_arc(table, {.dt = 0,
                  .du = 1,
                  .num_columns = 1,
                  .columns = {label_column(both)},
                  .kind = ArcKind::label});
  return table;
}

}  // namespace transducer
