// SPDX-License-Identifier: Apache-2.0
//
// Star transducer: RNN-T for audio with untranscribed stretches. Bataev 2025, arXiv 2504.06963. A
// frame may be skipped at a constant price instead of by a blank, except the last one.
//
//   blank (1, 0): log p(blank)      label (0, 1): log p(next label)      skip frame (1, 0): penalty
#pragma once

#include "reference/core/variant_table.hpp"
#include "reference/variants/rnnt.hpp"
#include "reference/variants/skip_arcs.hpp"

namespace transducer {

constexpr VariantTable star(double skip_frame_penalty, Position blank) {
  VariantTable table = rnnt(blank);
  set_name(table, "star");
  add_skip_frame_arc(table, skip_frame_penalty);
  return table;
}

}  // namespace transducer
