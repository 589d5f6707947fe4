// SPDX-License-Identifier: Apache-2.0
#include "cpu/poison.hpp"

#include <limits>
#include <vector>

#include "cpu/existence.hpp"

namespace transducer::cpu {
namespace {

constexpr double kImpossible = -std::numeric_limits<double>::infinity();

bool is_poison(double value) { return !(value < std::numeric_limits<double>::infinity()); }

/// Nodes [T+1, U+1] that a start reaches and that reach an end, over existing arcs.
class Reachable {
 public:
  Reachable(const Call& call, const Utterance& utterance)
      : width_(utterance.rows()),
        from_start_(static_cast<std::size_t>((utterance.frames + 1) * width_)),
        to_end_(from_start_.size()) {
    for (std::int64_t t = 0; t <= utterance.frames; ++t) {
      if (utterance.start_scores[t] != kImpossible) from_start_[at(t, 0)] = true;
      if (utterance.final_scores[t] != kImpossible) to_end_[at(t, utterance.labels)] = true;
    }
    for (std::int64_t t = 0; t < utterance.frames; ++t) {
      for (std::int64_t u = 0; u < width_; ++u) {
        for (int a = 0; a < call.plan.num_arcs && from_start_[at(t, u)]; ++a) {
          const PlannedArc& arc = call.plan.arcs[a];
          if (arc_exists(call, utterance, a, t, u)) from_start_[at(t + arc.dt, u + arc.du)] = true;
        }
      }
    }
    for (std::int64_t t = utterance.frames - 1; t >= 0; --t) {
      for (std::int64_t u = width_ - 1; u >= 0; --u) {
        for (int a = 0; a < call.plan.num_arcs; ++a) {
          const PlannedArc& arc = call.plan.arcs[a];
          if (arc_exists(call, utterance, a, t, u) && to_end_[at(t + arc.dt, u + arc.du)]) {
            to_end_[at(t, u)] = true;
          }
        }
      }
    }
  }

  bool from_start(std::int64_t t, std::int64_t u) const { return from_start_[at(t, u)]; }
  bool to_end(std::int64_t t, std::int64_t u) const { return to_end_[at(t, u)]; }

 private:
  std::size_t at(std::int64_t t, std::int64_t u) const {
    return static_cast<std::size_t>(t * width_ + u);
  }

  std::int64_t width_;
  std::vector<bool> from_start_;
  std::vector<bool> to_end_;
};

}  // namespace

void settle_poison(const Call& call, Utterance& utterance) {
  const Reachable reachable(call, utterance);
  for (std::int64_t t = 0; t <= utterance.frames; ++t) {
    if (is_poison(utterance.start_scores[t])) {
      utterance.poisoned = utterance.poisoned || reachable.to_end(t, 0);
      utterance.start_scores[t] = kImpossible;
    }
    if (is_poison(utterance.final_scores[t])) {
      utterance.poisoned = utterance.poisoned || reachable.from_start(t, utterance.labels);
      utterance.final_scores[t] = kImpossible;
    }
  }
  for (int a = 0; a < call.plan.num_arcs; ++a) {
    const PlannedArc& arc = call.plan.arcs[a];
    for (std::int64_t t = 0; t < utterance.frames; ++t) {
      for (std::int64_t u = 0; u < utterance.rows(); ++u) {
        double& weight = utterance.weight_row(a, t)[u];
        if (!is_poison(weight)) continue;
        utterance.poisoned = utterance.poisoned || (reachable.from_start(t, u) &&
                                                    reachable.to_end(t + arc.dt, u + arc.du));
        weight = kImpossible;
      }
    }
  }
}

}  // namespace transducer::cpu
