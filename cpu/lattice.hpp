// SPDX-License-Identifier: Apache-2.0
//
// Stage 2, lattice: alpha, beta, cost, and the posteriors in place of the weights. In double log space,
// so that no digit is lost on long sequences. A row of u is one vector loop per arc with dt >= 1; arcs
// with dt = 0 chain along u and are merged into one first. alpha and beta of each utterance are tasks of
// their own, so one long utterance keeps two threads busy.
#pragma once

#include <span>

#include "cpu/utterance.hpp"

namespace transducer::cpu {

/// Start and final scores of an utterance, -inf outside the band. Sets saw_poison.
void load_boundary_scores(const Call& call, Utterance& utterance);

/// Fills alpha, cost, feasible and poisoned, and beta if it is wanted. `row_buffers` holds 2 (U+1) doubles
/// per thread.
void lattice(const Call& call, std::span<Utterance> utterances, bool wants_beta,
             double* row_buffers);

/// Turns the weights of all frames into posteriors gamma, and finds skip_threshold from them.
void posteriors(const Call& call, std::span<Utterance> utterances, double skip_mass);

/// Probability that a path starts at (t, 0), and that it ends at (t, U).
double start_posterior(const Call& call, const Utterance& utterance, std::int64_t t);
double final_posterior(const Call& call, const Utterance& utterance, std::int64_t t);

}  // namespace transducer::cpu
