// SPDX-License-Identifier: Apache-2.0
//
// The max semiring's posteriors: 1 on the best path, 0 elsewhere.
#pragma once

#include "cpu/utterance.hpp"

namespace transducer::cpu {

/// Replaces the weights by the indicator of the best path and notes where it starts and ends. Ties go to
/// the earliest end, then at each node to a start, then to the incoming arc of lowest index.
void best_path_posteriors(const Call& call, Utterance& utterance);

}  // namespace transducer::cpu
