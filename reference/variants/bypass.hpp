// SPDX-License-Identifier: Apache-2.0
//
// Bypass transducer: RNN-T for transcripts with words that were not said. Bataev 2025,
// arXiv 2504.06963. A label may be passed over by a skip token, scored by `mode` (skip_arcs.hpp).
//
//   blank (1, 0): log p(blank)      label (0, 1): log p(next label)
//   skip token (0, 1): penalty + score
#pragma once

#include <string_view>

#include "reference/core/variant_table.hpp"
#include "reference/variants/rnnt.hpp"
#include "reference/variants/skip_arcs.hpp"

namespace transducer {

/// Throws InvalidArgument for an unknown mode.
inline VariantTable bypass(double skip_token_penalty, Position blank, std::string_view mode) {
  VariantTable table = rnnt(blank);
  set_name(table, "bypass");
  add_skip_token_arc(table, skip_token_penalty, mode, blank, 0);
  return table;
}

}  // namespace transducer
