// SPDX-License-Identifier: Apache-2.0
//
// Target-robust transducer: the star and the bypass transducer in one. Bataev 2025, arXiv
// 2504.06963.
//
//   blank (1, 0): log p(blank)      label (0, 1): log p(next label)
//   skip frame (1, 0): penalty      skip token (0, 1): penalty + score by `mode` (skip_arcs.hpp)
#pragma once

#include <string_view>

#include "reference/core/variant_table.hpp"
#include "reference/variants/rnnt.hpp"
#include "reference/variants/skip_arcs.hpp"

namespace transducer {

/// Throws InvalidArgument for an unknown mode.
inline VariantTable target_robust(double skip_frame_penalty, double skip_token_penalty,
                                  Position blank, std::string_view mode) {
  VariantTable table = rnnt(blank);
  set_name(table, "target_robust");
  add_skip_frame_arc(table, skip_frame_penalty);
  add_skip_token_arc(table, skip_token_penalty, mode, blank, 0);
  return table;
}

}  // namespace transducer
