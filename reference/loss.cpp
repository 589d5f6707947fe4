// SPDX-License-Identifier: Apache-2.0
#include "reference/loss.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/arrays.hpp"
#include "reference/core/cancel.hpp"
#include "reference/core/log_math.hpp"
#include "reference/core/validate_on_host.hpp"
#include "reference/gradient.hpp"
#include "reference/lattice.hpp"
#include "reference/scores.hpp"

namespace transducer::reference {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What the sum of costs is multiplied by.
double reduction_scale(const LossRequest& request, const LossShape& shape) {
  const auto total = [&](const TensorRef& lengths) {
    std::int64_t sum = 0;
    for (std::int64_t b = 0; b < shape.batch; ++b) sum += read_index(lengths, {b});
    return static_cast<double>(std::max<std::int64_t>(sum, 1));
  };
  switch (request.reduction) {
    case Reduction::none:
    case Reduction::sum:
      return 1.0;
    case Reduction::mean:
      return 1.0 / static_cast<double>(std::max<std::int64_t>(shape.batch, 1));
    case Reduction::mean_target:
      return 1.0 / total(request.target_lengths);
    case Reduction::mean_frame:
      return 1.0 / total(request.frame_lengths);
  }
  return 1.0;
}

double upstream_of(const LossRequest& request, std::int64_t b) {
  if (!request.upstream.defined()) return 1.0;
  return request.reduction == Reduction::none ? read_real(request.upstream, {b})
                                              : read_real(request.upstream, {});
}

/// Copies an array of one utterance into its place in the batch; `padding` fills the rest.
template <int Rank>
void write_padded(const TensorRef& tensor, std::int64_t b, const View<double, Rank>& values,
                  double padding) {
  if (!tensor.defined()) return;
  const std::int64_t last = Rank == 3 ? tensor.extent(3) : 1;
  for (std::int64_t t = 0; t < tensor.extent(1); ++t) {
    for (std::int64_t u = 0; u < tensor.extent(2); ++u) {
      const bool valid = t < values.extent(0) && u < values.extent(1);
      for (std::int64_t a = 0; a < last; ++a) {
        if constexpr (Rank == 3) {
          write_real(tensor, {b, t, u, a}, valid ? values(t, u, a) : padding);
        } else {
          write_real(tensor, {b, t, u}, valid ? values(t, u) : padding);
        }
      }
    }
  }
}

/// Probability that a path passes through (t, u): what leaves it plus what ends there.
double occupancy(const Utterance& utterance, Semiring semiring, const BestPath& best,
                 std::int64_t t, std::int64_t u) {
  double sum = 0.0;
  for (std::int64_t a = 0; a < utterance.arc_posterior.extent(2); ++a) {
    sum += utterance.arc_posterior(t, u, a);
  }
  if (u == utterance.labels) sum += final_posterior(utterance, semiring, best, t);
  return sum;
}

void write_occupancy(const TensorRef& tensor, Semiring semiring, const BestPath& best,
                     const Utterance& utterance) {
  if (!tensor.defined()) return;
  for (std::int64_t t = 0; t < tensor.extent(1); ++t) {
    for (std::int64_t u = 0; u < tensor.extent(2); ++u) {
      const bool valid = t < utterance.frames && u <= utterance.labels && utterance.feasible;
      write_real(tensor, {utterance.batch_index, t, u},
                 valid ? occupancy(utterance, semiring, best, t, u) : 0.0);
    }
  }
}

/// Gradients of start and final scores: minus the probability of starting or ending there. With no
/// frame they are not read.
void write_boundary_gradients(const LossRequest& request, const LossResult& result,
                              const BestPath& best, const Backward& backward,
                              const Utterance& utterance) {
  const std::int64_t b = utterance.batch_index;
  const auto value = [&](double posterior) {
    if (backward.poisoned) return kNaN;
    return posterior == 0.0 ? 0.0 : -posterior * backward.scale;
  };
  const bool reads = utterance.frames > 0 && utterance.feasible;
  if (result.start_scores_gradient.defined()) {
    for (std::int64_t t = 0; t < result.start_scores_gradient.extent(1); ++t) {
      const bool valid = reads && t < utterance.frames;
      write_real(result.start_scores_gradient, {b, t},
                 valid ? value(start_posterior(utterance, request.semiring, best, t)) : 0.0);
    }
  }
  if (result.final_scores_gradient.defined()) {
    for (std::int64_t t = 0; t < result.final_scores_gradient.extent(1); ++t) {
      const bool valid = reads && t <= utterance.frames;
      write_real(result.final_scores_gradient, {b, t},
                 valid ? value(final_posterior(utterance, request.semiring, best, t)) : 0.0);
    }
  }
}

/// A call that passed every check, with its memory.
struct Call {
  Call(const LossRequest& request, const LossResult& result, const Options& options,
       const Workspace& workspace)
      : valid(validate_on_host(request, result, options, "the reference")),
        plan(plan_workspace(valid.shape, options)),
        arrays{valid, plan, workspace} {
    check_workspace(plan, workspace, options.workspace_limit, request.caller);
  }

  ValidRequest valid;
  WorkspacePlan plan;
  Arrays arrays;
};

/// One utterance through the three stages; returns its cost.
double utterance_loss(const LossRequest& request, const LossResult& result, const Options& options,
                      const Call& call, double scale, NodeReader& reader, Utterance& utterance,
                      GradientSums& sums) {
  const std::int64_t b = utterance.batch_index;
  const VariantTable& table = call.valid.table;
  scores(request, call.valid, options, reader, utterance);
  load_boundary_scores(request, utterance);
  lattice(table, request.semiring, utterance);

  BestPath best;
  if (request.semiring == Semiring::max) best = trace_best_path(table, utterance);
  write_padded(result.arc_weights, b, utterance.arc_weights, kLogZero<double>);
  write_padded(result.alpha, b, utterance.alpha, kLogZero<double>);
  write_padded(result.beta, b, utterance.beta, kLogZero<double>);
  write_padded(result.arc_posterior, b, utterance.arc_posterior, 0.0);
  write_occupancy(result.occupancy, request.semiring, best, utterance);
  if (result.skipped_mass.defined()) write_real(result.skipped_mass, {b}, 0.0);

  if (call.valid.shape.gradient) {
    const View<double, 3> flow = call.arrays.arc_flow(utterance);
    std::transform(utterance.arc_posterior.data,
                   utterance.arc_posterior.data + utterance.arc_posterior.size(), flow.data,
                   [](double gamma) { return -gamma; });
    const Backward backward{.flow = flow,
                            .clamp = request.clamp,
                            .scale = scale * upstream_of(request, b),
                            .poisoned = utterance.poisoned};
    gradient(request, call.valid, result, options, backward, reader, utterance, sums);
    write_boundary_gradients(request, result, best, backward, utterance);
  }
  return request.zero_infinity && utterance.cost == kInfinity ? 0.0 : utterance.cost;
}

}  // namespace

void loss(const LossRequest& request, const LossResult& result, const Options& options,
          const Workspace& workspace) {
  const Call call(request, result, options, workspace);
  const double scale = reduction_scale(request, call.valid.shape);
  NodeReader reader = call.arrays.reader(request);
  GradientSums sums = call.arrays.gradient_sums();
  double total = 0.0;
  for (std::int64_t b = 0; b < call.valid.shape.batch; ++b) {
    poll_cancelled(options, request.caller);
    Utterance utterance = call.arrays.utterance(request, b);
    const double cost =
        utterance_loss(request, result, options, call, scale, reader, utterance, sums);
    if (result.costs.defined()) write_real(result.costs, {b}, cost);
    total += cost;
  }
  if (result.total.defined()) write_real(result.total, {}, total * scale);
  write_shared_gradients(result, sums);
}

void scores_backward(const LossRequest& request, const TensorRef& weights_gradient,
                     const LossResult& result, const Options& options, const Workspace& workspace) {
  const Call call(request, result, options, workspace);
  const LossShape& shape = call.valid.shape;
  const std::int64_t expected[] = {shape.batch, shape.frames, shape.labels + 1, shape.arcs};
  check(weights_gradient.rank == 4 &&
            std::equal(std::begin(expected), std::end(expected), weights_gradient.extents) &&
            is_real(weights_gradient.dtype),
        request.caller, ": the gradient of the arc weights has shape ",
        weights_gradient.shape_string(), ", expected [", expected[0], ", ", expected[1], ", ",
        expected[2], ", ", expected[3], "] because that is the shape of the arc weights");
  NodeReader reader = call.arrays.reader(request);
  GradientSums sums = call.arrays.gradient_sums();
  for (std::int64_t b = 0; call.valid.shape.gradient && b < shape.batch; ++b) {
    poll_cancelled(options, request.caller);
    Utterance utterance = call.arrays.utterance(request, b);
    scores(request, call.valid, options, reader, utterance);
    const View<double, 3> flow = call.arrays.arc_flow(utterance);
    for (std::int64_t t = 0; t < utterance.frames; ++t) {
      for (std::int64_t u = 0; u <= utterance.labels; ++u) {
        for (int a = 0; a < shape.arcs; ++a) {
          const bool open = utterance.arc_weights(t, u, a) != kLogZero<double>;
          flow(t, u, a) = open ? read_real(weights_gradient, {b, t, u, a}) : 0.0;
        }
      }
    }
    gradient(request, call.valid, result, options, Backward{.flow = flow}, reader, utterance, sums);
  }
  write_shared_gradients(result, sums);
}

}  // namespace transducer::reference
