// SPDX-License-Identifier: Apache-2.0
#include "cpu/existence.hpp"

#include <limits>

namespace transducer::cpu {

bool is_allowed(const Call& call, const Utterance& utterance, std::int64_t t, std::int64_t u) {
  const TensorRef& band = call.request.band;
  if (!band.defined() || t == utterance.frames) return true;
  return u >= read_index(band, {utterance.batch_index, t, 0}) &&
         u <= read_index(band, {utterance.batch_index, t, 1});
}

bool arc_fits(const Call& call, const Utterance& utterance, int a, std::int64_t t, std::int64_t u) {
  const PlannedArc& arc = call.plan.arcs[a];
  const std::int64_t to_t = t + arc.dt;
  const std::int64_t to_u = u + arc.du;
  if ((utterance.label_arcs[static_cast<std::size_t>(u)] >> a & 1u) == 0) return false;
  if (to_t > utterance.frames || to_u > utterance.labels) return false;
  if (to_t == utterance.frames && !arc.may_finish) return false;
  return is_allowed(call, utterance, t, u) && is_allowed(call, utterance, to_t, to_u);
}

bool arc_exists(const Call& call, const Utterance& utterance, int a, std::int64_t t,
                std::int64_t u) {
  constexpr double kMasked = -std::numeric_limits<double>::infinity();
  if (!arc_fits(call, utterance, a, t, u)) return false;
  if (call.valid.from_arc_weights) return utterance.weight_row(a, t)[u] != kMasked;
  return !call.valid.arc_scores.defined() ||
         read_real(call.valid.arc_scores, {utterance.batch_index, t, u, a}) != kMasked;
}

}  // namespace transducer::cpu
