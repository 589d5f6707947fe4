// SPDX-License-Identifier: Apache-2.0
//
// Which nodes and arcs exist, whatever the logits hold: lengths, band, may_finish, the next label, masks.
#pragma once

#include "cpu/utterance.hpp"

namespace transducer::cpu {

/// Whether the band allows node (t, u); t = T has no row and is allowed.
bool is_allowed(const Call& call, const Utterance& utterance, std::int64_t t, std::int64_t u);

/// Whether arc a may leave (t, u), arc_scores aside.
bool arc_fits(const Call& call, const Utterance& utterance, int a, std::int64_t t, std::int64_t u);

/// The same with masks: an arc score of -inf, or a given arc weight of -inf, removes the arc.
bool arc_exists(const Call& call, const Utterance& utterance, int a, std::int64_t t,
                std::int64_t u);

}  // namespace transducer::cpu
