// SPDX-License-Identifier: Apache-2.0
#include "cpu/lattice.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/best_path.hpp"
#include "cpu/frames.hpp"
#include "cpu/poison.hpp"
#include "reference/core/log_math.hpp"

namespace transducer::cpu {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kImpossible = -kInfinity;

/// sum[i] = sum[i] + state[i] * weight[i] in the semiring.
void add_arc(const Call& call, const double* state, const double* weight, std::int64_t count,
             double* sum) {
  if (call.request.semiring == Semiring::log) {
    call.kernels.lattice.log_add_arc(state, weight, count, sum);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) sum[i] = std::max(sum[i], state[i] + weight[i]);
}

double add(Semiring semiring, double a, double b) {
  return semiring == Semiring::log ? log_add(a, b) : std::max(a, b);
}

/// Semiring sum over the arcs that stay in the frame, (0, 1), of their weights out of (t, u). Returns
/// the weight row of the only such arc, `buffer`, or nullptr if there is none.
const double* merged_chain(const Call& call, const Utterance& utterance, std::int64_t t,
                           double* zeros, double* buffer) {
  const double* chain = nullptr;
  for (int a = 0; a < call.plan.num_arcs; ++a) {
    if (call.plan.arcs[a].dt != 0) continue;
    const double* row = utterance.weight_row(a, t);
    if (chain == nullptr) {
      chain = row;
      continue;
    }
    if (chain != buffer) std::copy_n(chain, utterance.rows(), buffer);
    std::fill_n(zeros, utterance.rows(), 0.0);
    add_arc(call, zeros, row, utterance.rows(), buffer);
    chain = buffer;
  }
  return chain;
}

void fill_alpha(const Call& call, Utterance& utterance, double* zeros, double* buffer) {
  const Semiring semiring = call.request.semiring;
  for (std::int64_t t = 0; t <= utterance.frames; ++t) {
    double* row = utterance.alpha_row(t);
    std::fill_n(row, utterance.rows(), kImpossible);
    row[0] = utterance.start_scores[t];
    for (int a = 0; a < call.plan.num_arcs; ++a) {
      const PlannedArc& arc = call.plan.arcs[a];
      if (arc.dt == 0 || arc.dt > t) continue;
      add_arc(call, utterance.alpha_row(t - arc.dt), utterance.weight_row(a, t - arc.dt),
              utterance.rows() - arc.du, row + arc.du);
    }
    if (t == utterance.frames) continue;
    const double* chain = merged_chain(call, utterance, t, zeros, buffer);
    if (chain == nullptr) continue;
    if (semiring == Semiring::log) {
      call.kernels.lattice.log_chain(row, chain, utterance.rows(), false);
      continue;
    }
    for (std::int64_t u = 1; u <= utterance.labels; ++u) {
      row[u] = std::max(row[u], row[u - 1] + chain[u - 1]);
    }
  }
}

void fill_beta(const Call& call, Utterance& utterance, double* zeros, double* buffer) {
  const Semiring semiring = call.request.semiring;
  for (std::int64_t t = utterance.frames; t >= 0; --t) {
    double* row = utterance.beta_row(t);
    std::fill_n(row, utterance.rows(), kImpossible);
    row[utterance.labels] = utterance.final_scores[t];
    if (t == utterance.frames) continue;
    for (int a = 0; a < call.plan.num_arcs; ++a) {
      const PlannedArc& arc = call.plan.arcs[a];
      if (arc.dt == 0 || t + arc.dt > utterance.frames) continue;
      add_arc(call, utterance.beta_row(t + arc.dt) + arc.du, utterance.weight_row(a, t),
              utterance.rows() - arc.du, row);
    }
    const double* chain = merged_chain(call, utterance, t, zeros, buffer);
    if (chain == nullptr) continue;
    if (semiring == Semiring::log) {
      call.kernels.lattice.log_chain(row, chain, utterance.rows(), true);
      continue;
    }
    for (std::int64_t u = utterance.labels - 1; u >= 0; --u) {
      row[u] = std::max(row[u], chain[u] + row[u + 1]);
    }
  }
}

void finish(const Call& call, Utterance& utterance) {
  double total = kImpossible;
  for (std::int64_t t = 0; t <= utterance.frames; ++t) {
    const double end = utterance.final_scores[t];
    if (end == kImpossible) continue;
    total = add(call.request.semiring, total, utterance.alpha_row(t)[utterance.labels] + end);
  }
  utterance.feasible = utterance.poisoned || total != kImpossible;
  utterance.cost = utterance.poisoned ? kNaN : 0.0 - total;
}

/// gamma of one frame in place of its weights.
void posterior_frame(const Call& call, Utterance& utterance, std::int64_t t) {
  for (int a = 0; a < call.plan.num_arcs; ++a) {
    const PlannedArc& arc = call.plan.arcs[a];
    double* row = utterance.weight_row(a, t);
    const std::int64_t count = utterance.rows() - arc.du;
    if (utterance.poisoned || !utterance.feasible || t + arc.dt > utterance.frames) {
      std::fill_n(row, utterance.rows(), utterance.poisoned ? kNaN : 0.0);
      continue;
    }
    call.kernels.lattice.arc_posterior(utterance.alpha_row(t), row,
                                       utterance.beta_row(t + arc.dt) + arc.du, utterance.cost,
                                       count, row);
    if (count < utterance.rows()) row[count] = 0.0;
  }
}

/// Occupancies fall into bins by their power of two: bin e holds [2^(e-1), 2^e) shifted by kBins.
constexpr int kBins = 160;

int occupancy_bin(double occupancy) {
  int exponent = 0;
  std::frexp(occupancy, &exponent);
  return std::clamp(exponent + kBins - 2, 0, kBins - 1);
}

/// The largest power of two below which the nodes of an utterance hold, together, at most `skip_mass`
/// times the expected number of arcs of a path. Counts are integers, so the cut does not depend on the
/// order of the frames; each node counts with the upper end of its bin.
void find_threshold(const Call& call, Utterance& utterance, double skip_mass) {
  utterance.skip_threshold = 0.0;
  if (skip_mass <= 0.0 || utterance.poisoned || !utterance.feasible) return;
  std::int64_t counts[kBins] = {};
  double path_length = 0.0;
  for (std::int64_t t = 0; t < utterance.frames; ++t) {
    for (std::int64_t u = 0; u <= utterance.labels; ++u) {
      double occupancy = 0.0;
      for (int a = 0; a < call.plan.num_arcs; ++a) occupancy += utterance.weight_row(a, t)[u];
      path_length += occupancy;
      if (occupancy > 0.0) ++counts[occupancy_bin(occupancy)];
    }
  }
  double mass = 0.0;
  for (int bin = 0; bin < kBins; ++bin) {
    const double upper = std::ldexp(1.0, bin - kBins + 2);
    mass += static_cast<double>(counts[bin]) * upper;
    if (mass > skip_mass * path_length) break;
    utterance.skip_threshold = upper;
  }
}

}  // namespace

void load_boundary_scores(const Call& call, Utterance& utterance) {
  const LossRequest& request = call.request;
  const std::int64_t b = utterance.batch_index;
  const std::int64_t frames = utterance.frames;
  std::fill_n(utterance.start_scores, frames + 1, kImpossible);
  std::fill_n(utterance.final_scores, frames + 1, kImpossible);
  utterance.start_scores[0] = 0.0;
  utterance.final_scores[frames] = 0.0;
  if (frames == 0) return;  // start and final scores are not read
  for (std::int64_t t = 0; t < frames && request.start_scores.defined(); ++t) {
    utterance.start_scores[t] = read_real(request.start_scores, {b, t});
  }
  for (std::int64_t t = 0; t <= frames && request.final_scores.defined(); ++t) {
    utterance.final_scores[t] = read_real(request.final_scores, {b, t});
  }
  for (std::int64_t t = 0; t < frames && request.band.defined(); ++t) {
    const std::int64_t low = read_index(request.band, {b, t, 0});
    const std::int64_t high = read_index(request.band, {b, t, 1});
    if (low > 0 || high < 0) utterance.start_scores[t] = kImpossible;
    if (low > utterance.labels || high < utterance.labels) utterance.final_scores[t] = kImpossible;
  }
  for (std::int64_t t = 0; t <= frames; ++t) {
    for (double score : {utterance.start_scores[t], utterance.final_scores[t]}) {
      if (!(score < kInfinity)) utterance.saw_poison = true;
    }
  }
}

void lattice(const Call& call, std::span<Utterance> utterances, bool wants_beta,
             double* row_buffers) {
  call.team.for_each(static_cast<std::int64_t>(utterances.size()), [&](std::int64_t i, int) {
    if (utterances[static_cast<std::size_t>(i)].saw_poison) {
      settle_poison(call, utterances[static_cast<std::size_t>(i)]);
    }
  });
  const std::int64_t width = call.valid.shape.labels + 1;
  const int sweeps = wants_beta ? 2 : 1;
  const auto tasks = static_cast<std::int64_t>(utterances.size()) * sweeps;
  call.team.for_each(tasks, [&](std::int64_t task, int thread) {
    Utterance& utterance = utterances[static_cast<std::size_t>(task / sweeps)];
    double* zeros = row_buffers + 2 * thread * width;
    (task % sweeps == 0 ? fill_alpha : fill_beta)(call, utterance, zeros, zeros + width);
  });
  for (Utterance& utterance : utterances) finish(call, utterance);
}

void posteriors(const Call& call, std::span<Utterance> utterances, double skip_mass) {
  if (call.request.semiring == Semiring::max) {
    call.team.for_each(static_cast<std::int64_t>(utterances.size()), [&](std::int64_t i, int) {
      best_path_posteriors(call, utterances[static_cast<std::size_t>(i)]);
    });
    return;
  }
  for_each_frame(call, utterances,
                 [&](Utterance& utterance, std::int64_t t, int, std::atomic<bool>&) {
                   posterior_frame(call, utterance, t);
                 });
  call.team.for_each(static_cast<std::int64_t>(utterances.size()), [&](std::int64_t i, int) {
    find_threshold(call, utterances[static_cast<std::size_t>(i)], skip_mass);
  });
}

double start_posterior(const Call& call, const Utterance& utterance, std::int64_t t) {
  if (call.request.semiring == Semiring::max) return utterance.best_start == t ? 1.0 : 0.0;
  return std::exp(utterance.start_scores[t] + utterance.beta_row(t)[0] + utterance.cost);
}

double final_posterior(const Call& call, const Utterance& utterance, std::int64_t t) {
  if (call.request.semiring == Semiring::max) return utterance.best_end == t ? 1.0 : 0.0;
  return std::exp(utterance.alpha_row(t)[utterance.labels] + utterance.final_scores[t] +
                  utterance.cost);
}

}  // namespace transducer::cpu
