// SPDX-License-Identifier: Apache-2.0
//
// From a batch to the small lattices that the brute force enumerates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "reference/core/variant_table.hpp"
#include "reference/core/view.hpp"
#include "reference/enumerate.hpp"
#include "tests/support/fixture.hpp"

namespace transducer::testing {

/// Utterance b of a batch as the brute force takes it; it borrows the batch's memory.
inline reference::TinyLattice tiny_lattice(const DenseBatch& batch, std::int64_t b) {
  const std::int64_t rows = batch.U + 1;
  const auto at = [](const auto& values, std::int64_t offset) { return values.data() + offset; };
  const auto ub = static_cast<std::size_t>(b);
  reference::TinyLattice tiny;
  tiny.table = bind_table(batch.variant, batch.K, "test");
  tiny.logits =
      row_major_view(at(batch.logits, b * batch.T * rows * batch.K), batch.T, rows, batch.K);
  tiny.labels =
      std::span(at(batch.targets, b * batch.U), static_cast<std::size_t>(batch.target_lengths[ub]));
  tiny.frames = batch.frame_lengths[ub];
  tiny.from_log_probs = batch.from_log_probs;
  if (!batch.arc_scores.empty()) {
    tiny.arc_scores = row_major_view(at(batch.arc_scores, b * batch.T * rows * batch.A()), batch.T,
                                     rows, batch.A());
  }
  if (!batch.band.empty()) {
    tiny.band = row_major_view(at(batch.band, b * batch.T * 2), batch.T, 2);
  }
  const auto frames = static_cast<std::size_t>(batch.T);
  if (!batch.start_scores.empty()) {
    tiny.start_scores = std::span(at(batch.start_scores, b * batch.T), frames);
  }
  if (!batch.final_scores.empty()) {
    tiny.final_scores = std::span(at(batch.final_scores, b * (batch.T + 1)), frames + 1);
  }
  return tiny;
}

}  // namespace transducer::testing
