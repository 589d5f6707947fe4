// SPDX-License-Identifier: Apache-2.0
#include "reference/inspection.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "reference/arrays.hpp"
#include "reference/core/cancel.hpp"
#include "reference/core/validate_on_host.hpp"
#include "reference/lattice.hpp"
#include "reference/loss.hpp"
#include "reference/scores.hpp"

namespace transducer::reference {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Scores and boundary scores of every utterance in turn, in memory of its own.
void for_each_utterance(const LossRequest& request, const Options& options,
                        const std::function<void(const ValidRequest&, Utterance&)>& visit) {
  const LossResult nothing;
  const ValidRequest valid = validate_on_host(request, nothing, options, "the reference");
  const WorkspacePlan plan = plan_workspace(valid.shape, options);
  std::vector<std::byte> memory(plan.scratch_bytes() + kWorkspaceAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::size_t shift =
      (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment;
  const Workspace workspace{.scratch = std::span(memory).subspan(shift, plan.scratch_bytes()),
                            .saved = {}};
  const Arrays arrays{valid, plan, workspace};
  NodeReader reader = arrays.reader(request);
  for (std::int64_t b = 0; b < valid.shape.batch; ++b) {
    poll_cancelled(options, request.caller);
    Utterance utterance = arrays.utterance(request, b);
    scores(request, valid, options, reader, utterance);
    load_boundary_scores(request, utterance);
    visit(valid, utterance);
  }
}

/// H = - sum over paths of p log p = log Z - sum of gamma w - expected start and final scores.
double path_entropy(const Utterance& utterance) {
  double entropy = -utterance.cost;
  const auto subtract = [&](double posterior, double weight) {
    if (posterior > 0.0) entropy -= posterior * weight;
  };
  for (std::int64_t i = 0; i < utterance.arc_posterior.size(); ++i) {
    subtract(utterance.arc_posterior.data[i], utterance.arc_weights.data[i]);
  }
  const BestPath none;
  for (std::int64_t t = 0; t <= utterance.frames; ++t) {
    const auto i = static_cast<std::size_t>(t);
    subtract(start_posterior(utterance, Semiring::log, none, t), utterance.start_scores[i]);
    subtract(final_posterior(utterance, Semiring::log, none, t), utterance.final_scores[i]);
  }
  return entropy < 0.0 ? 0.0 : entropy;  // rounding below 0 for a single path
}

void add_group_occupancy(const VariantTable& table, const Arc& arc, double gamma,
                         double* occupancy) {
  for (int i = 0; i < arc.num_columns; ++i) {
    const Column& column = arc.columns[i];
    for (int g = 0; g < table.num_groups; ++g) {
      if ((column.subtract & group_bit(g)) != 0) occupancy[g] += column.grad_scale * gamma;
      if ((column.add & group_bit(g)) != 0) occupancy[g] -= column.grad_scale * gamma;
    }
  }
}

/// Expected frames, arc counts and group occupancy, from the arc posteriors.
void add_expectations(const VariantTable& table, const Utterance& utterance,
                      Inspection& inspection) {
  const double start = utterance.poisoned ? kNaN : 0.0;
  const double no_path = utterance.feasible ? start : kNaN;
  inspection.expected_frames.assign(static_cast<std::size_t>(utterance.labels), no_path);
  inspection.arc_counts.assign(static_cast<std::size_t>(table.num_arcs), start);
  inspection.group_occupancy.assign(
      static_cast<std::size_t>(utterance.frames * (utterance.labels + 1) * table.num_groups),
      start);
  if (utterance.poisoned) return;
  for (std::int64_t t = 0; t < utterance.frames; ++t) {
    for (std::int64_t u = 0; u <= utterance.labels; ++u) {
      const std::int64_t node = t * (utterance.labels + 1) + u;
      for (int a = 0; a < table.num_arcs; ++a) {
        const double gamma = utterance.arc_posterior(t, u, a);
        if (gamma == 0.0) continue;
        inspection.arc_counts[static_cast<std::size_t>(a)] += gamma;
        if (table.arcs[a].du == 1) {
          inspection.expected_frames[static_cast<std::size_t>(u)] += gamma * static_cast<double>(t);
        }
        add_group_occupancy(table, table.arcs[a], gamma,
                            inspection.group_occupancy.data() + node * table.num_groups);
      }
    }
  }
}

}  // namespace

std::vector<BestPath> best_paths(const LossRequest& request, const Options& options) {
  std::vector<BestPath> paths;
  for_each_utterance(request, options, [&](const ValidRequest& valid, Utterance& utterance) {
    lattice(valid.table, Semiring::max, utterance);
    paths.push_back(trace_best_path(valid.table, utterance));
  });
  return paths;
}

std::vector<Inspection> inspect(const LossRequest& request, const Options& options) {
  std::vector<Inspection> inspections;
  for_each_utterance(request, options, [&](const ValidRequest& valid, Utterance& utterance) {
    Inspection inspection;
    lattice(valid.table, Semiring::max, utterance);
    inspection.best_path = trace_best_path(valid.table, utterance);
    lattice(valid.table, Semiring::log, utterance);
    inspection.cost = utterance.cost;
    add_expectations(valid.table, utterance, inspection);
    const bool has_paths = utterance.feasible && !utterance.poisoned;
    inspection.entropy = has_paths ? path_entropy(utterance) : kNaN;
    inspections.push_back(std::move(inspection));
  });
  return inspections;
}

}  // namespace transducer::reference
