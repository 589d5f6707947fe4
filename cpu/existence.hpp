// SPDX-License-Identifier: Apache-2.0
//
// Which nodes and arcs exist, whatever the logits hold: lengths, band, may_finish, the next label, masks.
#pragma once

#include "cpu/utterance.hpp"

namespace transducer::cpu {

/// A range of u, possibly empty.
struct NodeRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// The nodes of frame t that the band allows; t = T has no row and allows all.
NodeRange allowed_nodes(const Call& call, const Utterance& utterance, std::int64_t t);

/// The nodes of frame t that arc a may leave, the label at each u and arc_scores aside.
NodeRange arc_nodes(const Call& call, const Utterance& utterance, int a, std::int64_t t);

/// Whether arc a may leave (t, u), arc_scores aside.
bool arc_fits(const Call& call, const Utterance& utterance, int a, std::int64_t t, std::int64_t u);

/// The same with masks: an arc score of -inf, or a given arc weight of -inf, removes the arc.
bool arc_exists(const Call& call, const Utterance& utterance, int a, std::int64_t t,
                std::int64_t u);

}  // namespace transducer::cpu
