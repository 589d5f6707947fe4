// SPDX-License-Identifier: Apache-2.0
//
// Everything the lattice stage hands out besides costs: taps for inspection, and the gradients that do
// not pass through logits.
#include <cmath>
#include <limits>

#include "cpu/gradient.hpp"
#include "cpu/lattice.hpp"

namespace transducer::cpu {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kImpossible = -std::numeric_limits<double>::infinity();

bool is_valid(const Utterance& utterance, std::int64_t t, std::int64_t u) {
  return t < utterance.frames && u <= utterance.labels;
}

void write_nodes(const TensorRef& tensor, const Utterance& utterance, const double* values) {
  if (!tensor.defined()) return;
  for (std::int64_t t = 0; t < tensor.extent(1); ++t) {
    for (std::int64_t u = 0; u < tensor.extent(2); ++u) {
      const bool valid = t <= utterance.frames && u <= utterance.labels;
      write_real(tensor, {utterance.batch_index, t, u},
                 valid ? values[t * utterance.rows() + u] : kImpossible);
    }
  }
}

/// weights or posteriors [A, T, U+1] into [B, T, U+1, A], times `factor`, with `padding` elsewhere.
void write_arcs(const Call& call, const TensorRef& tensor, const Utterance& utterance,
                double factor, double padding) {
  if (!tensor.defined()) return;
  for (std::int64_t t = 0; t < tensor.extent(1); ++t) {
    for (std::int64_t u = 0; u < tensor.extent(2); ++u) {
      for (int a = 0; a < call.plan.num_arcs; ++a) {
        double value = padding;
        if (is_valid(utterance, t, u)) {
          value = utterance.weight_row(a, t)[u];
          value = value == 0.0 ? 0.0 : value * factor;
        }
        write_real(tensor, {utterance.batch_index, t, u, a}, value);
      }
    }
  }
}

void write_occupancy(const Call& call, const TensorRef& tensor, const Utterance& utterance) {
  if (!tensor.defined()) return;
  for (std::int64_t t = 0; t < tensor.extent(1); ++t) {
    for (std::int64_t u = 0; u < tensor.extent(2); ++u) {
      double occupancy = 0.0;
      if (is_valid(utterance, t, u) && utterance.feasible) {
        for (int a = 0; a < call.plan.num_arcs; ++a) occupancy += utterance.weight_row(a, t)[u];
        if (u == utterance.labels && !utterance.poisoned) {
          occupancy += final_posterior(call, utterance, t);
        }
      }
      write_real(tensor, {utterance.batch_index, t, u}, occupancy);
    }
  }
}

double boundary_gradient(const Utterance& utterance, double posterior) {
  if (utterance.poisoned) return kNaN;
  return posterior == 0.0 ? 0.0 : -posterior * utterance.scale;
}

void write_boundary_gradients(const Call& call, const Utterance& utterance) {
  const bool reads = utterance.frames > 0 && utterance.feasible;
  const TensorRef& start = call.result.start_scores_gradient;
  for (std::int64_t t = 0; start.defined() && t < start.extent(1); ++t) {
    const bool valid = reads && t < utterance.frames;
    write_real(start, {utterance.batch_index, t},
               valid ? boundary_gradient(utterance, start_posterior(call, utterance, t)) : 0.0);
  }
  const TensorRef& final = call.result.final_scores_gradient;
  for (std::int64_t t = 0; final.defined() && t < final.extent(1); ++t) {
    const bool valid = reads && t <= utterance.frames;
    write_real(final, {utterance.batch_index, t},
               valid ? boundary_gradient(utterance, final_posterior(call, utterance, t)) : 0.0);
  }
}

/// Occupancy that the backward left out.
double skipped_mass(const Call& call, const Utterance& utterance) {
  double mass = 0.0;
  for (std::int64_t t = 0; t < utterance.frames && utterance.skip_threshold > 0.0; ++t) {
    for (std::int64_t u = 0; u <= utterance.labels; ++u) {
      double occupancy = 0.0;
      for (int a = 0; a < call.plan.num_arcs; ++a) occupancy += utterance.weight_row(a, t)[u];
      if (occupancy < utterance.skip_threshold) mass += occupancy;
    }
  }
  return mass;
}

}  // namespace

void write_arc_weights(const Call& call, std::span<Utterance> utterances) {
  call.team.for_each(static_cast<std::int64_t>(utterances.size()), [&](std::int64_t i, int) {
    const Utterance& utterance = utterances[static_cast<std::size_t>(i)];
    write_arcs(call, call.result.arc_weights, utterance, 1.0, kImpossible);
  });
}

void write_lattice_outputs(const Call& call, std::span<Utterance> utterances) {
  call.team.for_each(static_cast<std::int64_t>(utterances.size()), [&](std::int64_t i, int) {
    const Utterance& utterance = utterances[static_cast<std::size_t>(i)];
    write_nodes(call.result.alpha, utterance, utterance.alpha);
    write_nodes(call.result.beta, utterance, utterance.beta);
    write_arcs(call, call.result.arc_posterior, utterance, 1.0, 0.0);
    write_occupancy(call, call.result.occupancy, utterance);
    write_arcs(call, call.result.arc_weights_gradient, utterance, -utterance.scale, 0.0);
    write_boundary_gradients(call, utterance);
    if (call.result.skipped_mass.defined()) {
      write_real(call.result.skipped_mass, {utterance.batch_index}, skipped_mass(call, utterance));
    }
  });
}

}  // namespace transducer::cpu
