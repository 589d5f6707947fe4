// SPDX-License-Identifier: Apache-2.0
//
// The gradient of arc_scores: -gamma, unscaled by FastEmit and unclamped, summed over broadcast axes in the
// order of utterances, frames, labels and arcs.
#pragma once

#include <span>

#include "cpu/utterance.hpp"

namespace transducer::cpu {

void add_arc_scores_gradient(const Call& call, std::span<Utterance> utterances,
                             std::span<double> sum);
void write_arc_scores_gradient(const Call& call, std::span<const double> sum);

}  // namespace transducer::cpu
