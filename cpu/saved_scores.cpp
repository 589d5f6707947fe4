// SPDX-License-Identifier: Apache-2.0
#include "cpu/saved_scores.hpp"

#include <algorithm>
#include <limits>

namespace transducer::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Where the part of an utterance begins.
std::int64_t offset_of(const Call& call, const Utterance& utterance) {
  const LossShape& shape = call.valid.shape;
  return utterance.batch_index * (shape.arcs + shape.groups) * shape.frames * (shape.labels + 1);
}

}  // namespace

void save_scores(const Call& call, std::span<const Utterance> utterances, std::span<double> saved) {
  call.team.for_each(static_cast<std::int64_t>(utterances.size()), [&](std::int64_t i, int) {
    const Utterance& utterance = utterances[static_cast<std::size_t>(i)];
    const std::int64_t nodes = utterance.frames * utterance.rows();
    double* part = saved.data() + offset_of(call, utterance);
    part = std::copy_n(utterance.arc_weights, call.valid.shape.arcs * nodes, part);
    std::copy_n(utterance.group_log_sums, call.valid.shape.groups * nodes, part);
  });
}

void load_scores(const Call& call, std::span<const double> saved, std::span<Utterance> utterances) {
  call.team.for_each(static_cast<std::int64_t>(utterances.size()), [&](std::int64_t i, int) {
    Utterance& utterance = utterances[static_cast<std::size_t>(i)];
    const std::int64_t nodes = utterance.frames * utterance.rows();
    const std::int64_t weights = call.valid.shape.arcs * nodes;
    const double* part = saved.data() + offset_of(call, utterance);
    std::copy_n(part, weights, utterance.arc_weights);
    std::copy_n(part + weights, call.valid.shape.groups * nodes, utterance.group_log_sums);
    utterance.saw_poison =
        std::any_of(part, part + weights, [](double weight) { return !(weight < kInfinity); });
  });
}

}  // namespace transducer::cpu
