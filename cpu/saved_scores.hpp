// SPDX-License-Identifier: Apache-2.0
//
// What the forward keeps for the backward: the output of the first stage, arc weights and group log-sums,
// as [B, A+G, T, U+1] doubles. Each utterance fills the front of its part, packed to its own lengths.
#pragma once

#include <span>

#include "cpu/utterance.hpp"

namespace transducer::cpu {

void save_scores(const Call& call, std::span<const Utterance> utterances, std::span<double> saved);

/// Sets saw_poison, as the stage itself would.
void load_scores(const Call& call, std::span<const double> saved, std::span<Utterance> utterances);

}  // namespace transducer::cpu
