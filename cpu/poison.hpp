// SPDX-License-Identifier: Apache-2.0
//
// NaN and +inf count where an arc on some path reads them. The usual case has none and pays nothing; an
// utterance that showed some is settled here, by a walk over which arcs exist.
#pragma once

#include "cpu/utterance.hpp"

namespace transducer::cpu {

/// Sets `poisoned` if a NaN weight or a NaN or +inf boundary score lies on a path over existing arcs;
/// every other NaN weight becomes -inf, so that the recursions never see it.
void settle_poison(const Call& call, Utterance& utterance);

}  // namespace transducer::cpu
