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

/// Minus a gradient of the arc weights [B, T, U+1, A] in the place of gamma; 0 where there is no arc.
void load_weights_gradient(const Call& call, const TensorRef& weights_gradient,
                           std::span<Utterance> utterances);

}  // namespace transducer::cpu
