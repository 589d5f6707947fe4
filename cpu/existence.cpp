// SPDX-License-Identifier: Apache-2.0
#include "cpu/existence.hpp"

#include <algorithm>
#include <limits>

namespace transducer::cpu {

NodeRange allowed_nodes(const Call& call, const Utterance& utterance, std::int64_t t) {
  const TensorRef& band = call.request.band;
  if (!band.defined() || t == utterance.frames) return {0, utterance.rows()};
  return {std::max<std::int64_t>(read_index(band, {utterance.batch_index, t, 0}), 0),
          std::min(read_index(band, {utterance.batch_index, t, 1}), utterance.labels) + 1};
}

NodeRange arc_nodes(const Call& call, const Utterance& utterance, int a, std::int64_t t) {
  const PlannedArc& arc = call.plan.arcs[a];
  const std::int64_t to = t + arc.dt;
  if (to > utterance.frames || (to == utterance.frames && !arc.may_finish)) return {};
  const NodeRange from_here = allowed_nodes(call, utterance, t);
  const NodeRange to_there = allowed_nodes(call, utterance, to);
  return {std::max(from_here.begin, to_there.begin - arc.du),
          std::min(from_here.end, to_there.end - arc.du)};
}

bool arc_fits(const Call& call, const Utterance& utterance, int a, std::int64_t t, std::int64_t u) {
  const NodeRange nodes = arc_nodes(call, utterance, a, t);
  return nodes.begin <= u && u < nodes.end &&
         (utterance.label_arcs[static_cast<std::size_t>(u)] >> a & 1u) != 0;
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
