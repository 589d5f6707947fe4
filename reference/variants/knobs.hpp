// SPDX-License-Identifier: Apache-2.0
//
// The three knobs that every named variant takes, as functions from a table to a table.
//
//   fastemit       the derivative of log p(next label) is multiplied by 1 + lambda; the cost
//                  stays (Yu et al. 2020, arXiv 2010.11148)
//   delay_penalty  + lambda ((T-1)/2 - t) on every arc that emits
//                  (Kang et al. 2022, arXiv 2211.00490)
//   sigma          - sigma once on every arc that scores a symbol
//                  (Xu et al. 2023, arXiv 2304.06795, eq. 16)
#pragma once

#include "reference/core/variant_table.hpp"

namespace transducer {

/// Scales the gradient of the label column of label arcs by 1 + lambda, its normalisers included.
/// Duration columns, constants and skip arcs keep scale 1.
constexpr VariantTable with_fastemit(VariantTable table, double lambda) {
  for (int a = 0; a < table.num_arcs; ++a) {
    Arc& arc = table.arcs[a];
    if (arc.kind != ArcKind::label) continue;
    for (int i = 0; i < arc.num_columns; ++i) {
      if (arc.columns[i].kind == ColumnKind::label) arc.columns[i].grad_scale *= 1.0 + lambda;
    }
  }
  return table;
}

/// Adds a frame bonus to every du = 1 arc.
constexpr VariantTable with_delay_penalty(VariantTable table, double lambda) {
  for (int a = 0; a < table.num_arcs; ++a) {
    if (table.arcs[a].du == 1) table.arcs[a].frame_bonus += lambda;
  }
  return table;
}

/// Whether a column scores a symbol of the vocabulary: the next label, a fixed column below V, or a
/// log-sum. Columns at V and above are extra heads.
constexpr bool scores_a_symbol(const Column& column) {
  const bool above_vocabulary = column.position.from_vocabulary && column.position.offset >= 0;
  return column.kind != ColumnKind::fixed || !above_vocabulary;
}

/// Subtracts sigma once from every arc that scores a symbol; skip-frame and constant arcs do not.
constexpr VariantTable with_sigma(VariantTable table, double sigma) {
  for (int a = 0; a < table.num_arcs; ++a) {
    Arc& arc = table.arcs[a];
    bool scores = false;
    for (int i = 0; i < arc.num_columns; ++i) scores = scores || scores_a_symbol(arc.columns[i]);
    if (scores) arc.constant.value -= sigma;
  }
  return table;
}

}  // namespace transducer
