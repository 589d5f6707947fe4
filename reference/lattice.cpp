// SPDX-License-Identifier: Apache-2.0
#include "reference/lattice.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/core/log_math.hpp"

namespace transducer::reference {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kImpossible = kLogZero<double>;

bool is_poison(double value) { return std::isnan(value) || value == kInfinity; }

bool exists(const Utterance& utterance, std::int64_t t, std::int64_t u, int arc) {
  return (utterance.arc_exists(t, u) >> arc & 1u) != 0;
}

bool is_reachable(const Utterance& utterance, std::int64_t t, std::int64_t u, std::uint8_t bits) {
  return (utterance.reachable(t, u) & bits) == bits;
}

double start_score(const Utterance& utterance, std::int64_t t, std::int64_t u) {
  return u == 0 ? utterance.start_scores[static_cast<std::size_t>(t)] : kImpossible;
}

double final_score(const Utterance& utterance, std::int64_t t, std::int64_t u) {
  return u == utterance.labels ? utterance.final_scores[static_cast<std::size_t>(t)] : kImpossible;
}

double add(Semiring semiring, double a, double b) {
  return semiring == Semiring::log ? log_add(a, b) : std::max(a, b);
}

/// Calls visit(arc, source_t, source_u) for each arc that lands on (t, u) from a node a start
/// reaches.
template <class Visit>
void for_each_incoming(const VariantTable& table, const Utterance& utterance, std::int64_t t,
                       std::int64_t u, Visit&& visit) {
  for (int a = 0; a < table.num_arcs; ++a) {
    const std::int64_t from_t = t - table.arcs[a].dt;
    const std::int64_t from_u = u - table.arcs[a].du;
    if (from_t < 0 || from_u < 0 || from_t >= utterance.frames) continue;
    if (!exists(utterance, from_t, from_u, a)) continue;
    if (!is_reachable(utterance, from_t, from_u, kFromStart)) continue;
    visit(a, from_t, from_u);
  }
}

/// Calls visit(arc, destination_t, destination_u) for each arc that leaves (t, u) for a node that
/// reaches an end.
template <class Visit>
void for_each_outgoing(const VariantTable& table, const Utterance& utterance, std::int64_t t,
                       std::int64_t u, Visit&& visit) {
  if (t == utterance.frames) return;
  for (int a = 0; a < table.num_arcs; ++a) {
    if (!exists(utterance, t, u, a)) continue;
    const std::int64_t to_t = t + table.arcs[a].dt;
    const std::int64_t to_u = u + table.arcs[a].du;
    if (is_reachable(utterance, to_t, to_u, kToEnd)) visit(a, to_t, to_u);
  }
}

/// Every arc raises t or u and lowers neither, so rows of t in order, each in order of u, visit
/// every source before its destinations.
template <class Visit>
void for_each_node(const Utterance& utterance, Visit&& visit) {
  for (std::int64_t t = 0; t <= utterance.frames; ++t) {
    for (std::int64_t u = 0; u <= utterance.labels; ++u) visit(t, u);
  }
}

template <class Visit>
void for_each_node_backwards(const Utterance& utterance, Visit&& visit) {
  for (std::int64_t t = utterance.frames; t >= 0; --t) {
    for (std::int64_t u = utterance.labels; u >= 0; --u) visit(t, u);
  }
}

void mark_reachable(const VariantTable& table, Utterance& utterance) {
  std::fill_n(utterance.reachable.data, utterance.reachable.size(), std::uint8_t{0});
  for_each_node(utterance, [&](std::int64_t t, std::int64_t u) {
    bool reached = start_score(utterance, t, u) != kImpossible;
    for_each_incoming(table, utterance, t, u,
                      [&](int, std::int64_t, std::int64_t) { reached = true; });
    if (reached) utterance.reachable(t, u) |= kFromStart;
  });
  for_each_node_backwards(utterance, [&](std::int64_t t, std::int64_t u) {
    bool reaches = final_score(utterance, t, u) != kImpossible;
    for_each_outgoing(table, utterance, t, u,
                      [&](int, std::int64_t, std::int64_t) { reaches = true; });
    if (reaches) utterance.reachable(t, u) |= kToEnd;
  });
}

/// Whether anything on some path is NaN or +inf: an arc, a start or a final score.
bool find_poison(const VariantTable& table, const Utterance& utterance) {
  bool poisoned = false;
  for_each_node(utterance, [&](std::int64_t t, std::int64_t u) {
    if (!is_reachable(utterance, t, u, kFromStart | kToEnd)) return;
    poisoned = poisoned || is_poison(start_score(utterance, t, u)) ||
               is_poison(final_score(utterance, t, u));
    for_each_outgoing(table, utterance, t, u, [&](int a, std::int64_t, std::int64_t) {
      poisoned = poisoned || is_poison(utterance.arc_weights(t, u, a));
    });
  });
  return poisoned;
}

void fill_alpha(const VariantTable& table, Semiring semiring, Utterance& utterance) {
  for_each_node(utterance, [&](std::int64_t t, std::int64_t u) {
    double sum = start_score(utterance, t, u);
    for_each_incoming(table, utterance, t, u, [&](int a, std::int64_t from_t, std::int64_t from_u) {
      sum = add(semiring, sum,
                utterance.alpha(from_t, from_u) + utterance.arc_weights(from_t, from_u, a));
    });
    utterance.alpha(t, u) = sum;
  });
}

void fill_beta(const VariantTable& table, Semiring semiring, Utterance& utterance) {
  for_each_node_backwards(utterance, [&](std::int64_t t, std::int64_t u) {
    double sum = final_score(utterance, t, u);
    for_each_outgoing(table, utterance, t, u, [&](int a, std::int64_t to_t, std::int64_t to_u) {
      sum = add(semiring, sum, utterance.arc_weights(t, u, a) + utterance.beta(to_t, to_u));
    });
    utterance.beta(t, u) = sum;
  });
}

double total_weight(Semiring semiring, const Utterance& utterance) {
  double sum = kImpossible;
  for (std::int64_t t = 0; t <= utterance.frames; ++t) {
    if (!is_reachable(utterance, t, utterance.labels, kFromStart)) continue;
    const double end = final_score(utterance, t, utterance.labels);
    if (end != kImpossible) sum = add(semiring, sum, utterance.alpha(t, utterance.labels) + end);
  }
  return sum;
}

void fill_arc_posterior(const VariantTable& table, Semiring semiring, Utterance& utterance) {
  std::fill_n(utterance.arc_posterior.data, utterance.arc_posterior.size(),
              utterance.poisoned ? kNaN : 0.0);
  if (!utterance.feasible || utterance.poisoned) return;
  if (semiring == Semiring::max) {
    for (const PathStep& step : trace_best_path(table, utterance).steps) {
      utterance.arc_posterior(step.t, step.u, step.arc) = 1.0;
    }
    return;
  }
  for_each_node(utterance, [&](std::int64_t t, std::int64_t u) {
    if (!is_reachable(utterance, t, u, kFromStart)) return;
    for_each_outgoing(table, utterance, t, u, [&](int a, std::int64_t to_t, std::int64_t to_u) {
      utterance.arc_posterior(t, u, a) =
          std::exp(utterance.alpha(t, u) + utterance.arc_weights(t, u, a) +
                   utterance.beta(to_t, to_u) + utterance.cost);
    });
  });
}

}  // namespace

void load_boundary_scores(const LossRequest& request, Utterance& utterance) {
  const std::int64_t b = utterance.batch_index;
  std::fill(utterance.start_scores.begin(), utterance.start_scores.end(), kImpossible);
  std::fill(utterance.final_scores.begin(), utterance.final_scores.end(), kImpossible);
  const auto last = static_cast<std::size_t>(utterance.frames);
  if (utterance.frames == 0) {  // no frame to start on: one empty path, if there is no label either
    utterance.start_scores[0] = 0.0;
    utterance.final_scores[0] = 0.0;
    return;
  }
  utterance.start_scores[0] = 0.0;
  utterance.final_scores[last] = 0.0;
  for (std::int64_t t = 0; request.start_scores.defined() && t < utterance.frames; ++t) {
    utterance.start_scores[static_cast<std::size_t>(t)] = read_real(request.start_scores, {b, t});
  }
  for (std::int64_t t = 0; request.final_scores.defined() && t <= utterance.frames; ++t) {
    utterance.final_scores[static_cast<std::size_t>(t)] = read_real(request.final_scores, {b, t});
  }
  for (std::int64_t t = 0; request.band.defined() && t < utterance.frames; ++t) {
    const std::int64_t first = read_index(request.band, {b, t, 0});
    const std::int64_t final = read_index(request.band, {b, t, 1});
    const auto allowed = [&](std::int64_t u) { return first <= u && u <= final; };
    if (!allowed(0)) utterance.start_scores[static_cast<std::size_t>(t)] = kImpossible;
    if (!allowed(utterance.labels)) {
      utterance.final_scores[static_cast<std::size_t>(t)] = kImpossible;
    }
  }
}

void lattice(const VariantTable& table, Semiring semiring, Utterance& utterance) {
  mark_reachable(table, utterance);
  utterance.poisoned = find_poison(table, utterance);
  fill_alpha(table, semiring, utterance);
  fill_beta(table, semiring, utterance);
  const double weight = total_weight(semiring, utterance);
  utterance.feasible = utterance.poisoned || weight != kImpossible;
  utterance.cost = utterance.poisoned ? kNaN : 0.0 - weight;  // 0 - 0 is +0, where -0 would print
  fill_arc_posterior(table, semiring, utterance);
}

double start_posterior(const Utterance& utterance, Semiring semiring, const BestPath& best,
                       std::int64_t t) {
  if (semiring == Semiring::max) return best.exists && best.start_frame == t ? 1.0 : 0.0;
  if (!is_reachable(utterance, t, 0, kFromStart | kToEnd)) return 0.0;
  return std::exp(start_score(utterance, t, 0) + utterance.beta(t, 0) + utterance.cost);
}

double final_posterior(const Utterance& utterance, Semiring semiring, const BestPath& best,
                       std::int64_t t) {
  const std::int64_t u = utterance.labels;
  if (semiring == Semiring::max) return best.exists && best.end_frame == t ? 1.0 : 0.0;
  if (!is_reachable(utterance, t, u, kFromStart | kToEnd)) return 0.0;
  const double end = final_score(utterance, t, u);
  return end == kImpossible ? 0.0 : std::exp(utterance.alpha(t, u) + end + utterance.cost);
}

BestPath trace_best_path(const VariantTable& table, const Utterance& utterance) {
  BestPath path;
  path.score = utterance.poisoned ? kNaN : 0.0 - utterance.cost;
  if (!utterance.feasible || utterance.poisoned) return path;
  path.exists = true;
  std::int64_t t = 0;
  std::int64_t u = utterance.labels;
  while (!(is_reachable(utterance, t, u, kFromStart) &&
           final_score(utterance, t, u) != kImpossible &&
           utterance.alpha(t, u) + final_score(utterance, t, u) == path.score)) {
    ++t;  // the earliest end that reaches the total
  }
  path.end_frame = t;
  // alpha is a maximum of these very sums, so one of them equals it to the bit.
  while (start_score(utterance, t, u) != utterance.alpha(t, u)) {
    PathStep step{.arc = -1};
    for_each_incoming(table, utterance, t, u, [&](int a, std::int64_t from_t, std::int64_t from_u) {
      const double weight = utterance.arc_weights(from_t, from_u, a);
      if (step.arc < 0 && utterance.alpha(from_t, from_u) + weight == utterance.alpha(t, u)) {
        step = {.t = from_t, .u = from_u, .arc = a, .weight = weight};
      }
    });
    path.steps.push_back(step);
    t = step.t;
    u = step.u;
  }
  path.start_frame = t;
  std::reverse(path.steps.begin(), path.steps.end());
  return path;
}

}  // namespace transducer::reference
