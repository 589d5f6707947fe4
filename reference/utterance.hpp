// SPDX-License-Identifier: Apache-2.0
//
// One utterance while it is being computed: its sizes, its labels and the arrays that the three
// stages fill and read. Letters as in docs/notation.md; here T and U are this utterance's own
// lengths.
#pragma once

#include <cstdint>
#include <span>

#include "reference/core/view.hpp"

namespace transducer::reference {

struct Utterance {
  std::int64_t batch_index = 0;           // b
  std::int64_t frames = 0;                // T
  std::int64_t labels = 0;                // U
  std::span<const std::int64_t> targets;  // [U]

  // Filled by scores().
  View<double, 3> arc_weights;        // [T, U+1, A] complete log-weights, -inf where no arc exists
  View<std::uint32_t, 2> arc_exists;  // [T, U+1] bit a: arc a exists whatever the logits hold
  View<double, 3> group_log_sums;  // [T, U+1, G] log-sum-exp (softplus for Bernoulli) of each group

  // Filled by load_boundary_scores().
  std::span<double> start_scores;  // [T+1] log-weight of starting at (t, 0)
  std::span<double> final_scores;  // [T+1] log-weight of ending at (t, U)

  // Filled by lattice().
  View<std::uint8_t, 2> reachable;  // [T+1, U+1] kFromStart | kToEnd
  View<double, 2> alpha;            // [T+1, U+1]
  View<double, 2> beta;             // [T+1, U+1]
  View<double, 3> arc_posterior;    // [T, U+1, A] gamma
  double cost = 0.0;
  bool feasible = false;  ///< some path has a weight above -inf
  bool poisoned = false;  ///< an arc on some path reads NaN or +inf

  /// The next label at u, or -1 at u = U.
  std::int64_t label(std::int64_t u) const {
    return u < labels ? targets[static_cast<std::size_t>(u)] : -1;
  }
};

}  // namespace transducer::reference
