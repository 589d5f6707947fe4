// SPDX-License-Identifier: Apache-2.0
#include "cpu/best_path.hpp"

#include <algorithm>
#include <limits>
#include <vector>

namespace transducer::cpu {
namespace {

struct Step {
  int arc;
  std::int64_t t;
  std::int64_t u;
};

/// The arc of lowest index whose weight accounts for alpha(t, u).
Step incoming(const Call& call, const Utterance& utterance, std::int64_t t, std::int64_t u) {
  for (int a = 0; a < call.plan.num_arcs; ++a) {
    const std::int64_t from_t = t - call.plan.arcs[a].dt;
    const std::int64_t from_u = u - call.plan.arcs[a].du;
    if (from_t < 0 || from_u < 0 || from_t >= utterance.frames) continue;
    const double weight = utterance.weight_row(a, from_t)[from_u];
    if (utterance.alpha_row(from_t)[from_u] + weight == utterance.alpha_row(t)[u]) {
      return {a, from_t, from_u};
    }
  }
  return {-1, t, u};
}

}  // namespace

void best_path_posteriors(const Call& call, Utterance& utterance) {
  const std::int64_t count = call.plan.num_arcs * utterance.frames * utterance.rows();
  std::vector<Step> path;
  if (utterance.feasible && !utterance.poisoned) {
    std::int64_t t = 0;
    std::int64_t u = utterance.labels;
    while (utterance.final_scores[t] == -std::numeric_limits<double>::infinity() ||
           utterance.alpha_row(t)[u] + utterance.final_scores[t] != 0.0 - utterance.cost) {
      ++t;
    }
    utterance.best_end = t;
    while (u > 0 || utterance.start_scores[t] != utterance.alpha_row(t)[u]) {
      const Step step = incoming(call, utterance, t, u);
      path.push_back(step);
      t = step.t;
      u = step.u;
    }
    utterance.best_start = t;
  }
  std::fill_n(utterance.arc_weights, count,
              utterance.poisoned ? std::numeric_limits<double>::quiet_NaN() : 0.0);
  for (const Step& step : path) utterance.weight_row(step.arc, step.t)[step.u] = 1.0;
}

}  // namespace transducer::cpu
