// SPDX-License-Identifier: Apache-2.0
//
// Stage 2, lattice: sums over all paths from (0, 0) to (T, U) (docs/math.md#alpha-beta).
//
//   alpha(t, u)  log-sum over paths from a start to (t, u), start score included
//   beta(t, u)   log-sum over paths from (t, u) to an end, final score included
//   cost         = - log-sum over ends of alpha(t, U) + final(t)
//   gamma(arc)   = exp(alpha(source) + w + beta(destination) + cost)
//
// In the max semiring every log-sum is a maximum and gamma is 1 on the best path, 0 elsewhere. The
// lattice never sees the vocabulary. Work: A per node, three times.
#pragma once

#include <vector>

#include "reference/core/request.hpp"
#include "reference/core/validate.hpp"
#include "reference/inspection.hpp"
#include "reference/utterance.hpp"

namespace transducer::reference {

/// Bits of Utterance::reachable: over arcs that exist, whatever their weights.
inline constexpr std::uint8_t kFromStart = 1;
inline constexpr std::uint8_t kToEnd = 2;

/// Fills start_scores and final_scores: the request's, or 0 at t = 0 and t = T; -inf outside the
/// band.
void load_boundary_scores(const LossRequest& request, Utterance& utterance);

/// Fills reachable, alpha, beta, arc_posterior, cost, feasible and poisoned.
void lattice(const VariantTable& table, Semiring semiring, Utterance& utterance);

/// Probability that a path starts at (t, 0), and that it ends at (t, U). `best` is read in the max
/// semiring only.
double start_posterior(const Utterance& utterance, Semiring semiring, const BestPath& best,
                       std::int64_t t);
double final_posterior(const Utterance& utterance, Semiring semiring, const BestPath& best,
                       std::int64_t t);

/// The best path of an utterance whose alpha was computed in the max semiring.
BestPath trace_best_path(const VariantTable& table, const Utterance& utterance);

}  // namespace transducer::reference
