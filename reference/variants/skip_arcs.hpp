// SPDX-License-Identifier: Apache-2.0
//
// The two skip arcs of the transducers for unreliable transcripts (Bataev 2025, arXiv 2504.06963):
//
//   skip frame (1, 0): a constant, parallel to every blank that does not end the path
//   skip token (0, 1): penalty + a score of "some other symbol", parallel to every label
//
// The score of a skip token by mode, with p the softmax over the vocabulary:
//   sumexcl   log sum of p over everything but blank and the next label
//   sum       log sum of p over everything but blank
//   mean      sum - log(V - 1)
//   constant  0
#pragma once

#include <string_view>

#include "reference/core/error.hpp"
#include "reference/core/variant_table.hpp"

namespace transducer {

constexpr void add_skip_frame_arc(VariantTable& table, double penalty) {
  const Arc arc = {.dt = 1, .du = 0, .constant = {penalty, 0.0}, .kind = ArcKind::skip};
  add_arc(table, arc);
}

/// `vocabulary` is the group whose softmax normalises the score. Throws InvalidArgument for a mode
/// that is not in the list above.
inline void add_skip_token_arc(VariantTable& table, double penalty, std::string_view mode,
                               Position blank, int vocabulary) {
  Arc arc = {.dt = 0, .du = 1, .constant = {penalty, 0.0}, .kind = ArcKind::skip};
  if (mode != "constant") {
    check(mode == "sumexcl" || mode == "sum" || mode == "mean", table.name, ": mode is '", mode,
          "', expected 'sumexcl', 'sum', 'mean' or 'constant'");
    const int others = add_group(table, {.begin = position(0),
                                         .end = vocabulary_plus(0),
                                         .exclude_fixed = true,
                                         .excluded = blank,
                                         .exclude_label = mode == "sumexcl",
                                         .normaliser = Normaliser::none});
    arc.num_columns = 1;
    arc.columns[0] = log_sum_column(others, group_bit(vocabulary));
    if (mode == "mean") arc.constant.log_v1 = -1.0;
  }
  add_arc(table, arc);
}

}  // namespace transducer
