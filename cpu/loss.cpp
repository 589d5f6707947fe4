// SPDX-License-Identifier: Apache-2.0
#include "cpu/loss.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/arc_scores.hpp"
#include "cpu/gradient.hpp"
#include "cpu/joint.hpp"
#include "cpu/lattice.hpp"
#include "cpu/saved_scores.hpp"
#include "cpu/scores.hpp"
#include "cpu/utterance.hpp"
#include "cpu/wave.hpp"
#include "reference/core/validate_on_host.hpp"

namespace transducer::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double reduction_scale(const LossRequest& request, std::int64_t batch) {
  const auto total = [&](const TensorRef& lengths) {
    std::int64_t sum = 0;
    for (std::int64_t b = 0; b < batch; ++b) sum += read_index(lengths, {b});
    return static_cast<double>(std::max<std::int64_t>(sum, 1));
  };
  switch (request.reduction) {
    case Reduction::mean:
      return 1.0 / static_cast<double>(std::max<std::int64_t>(batch, 1));
    case Reduction::mean_target:
      return 1.0 / total(request.target_lengths);
    case Reduction::mean_frame:
      return 1.0 / total(request.frame_lengths);
    default:
      return 1.0;
  }
}

double upstream_of(const LossRequest& request, std::int64_t b) {
  if (!request.upstream.defined()) return 1.0;
  return request.reduction == Reduction::none ? read_real(request.upstream, {b})
                                              : read_real(request.upstream, {});
}

double skip_mass_of(const LossRequest& request, const LossShape& shape) {
  if (request.skip_mass >= 0.0) return request.skip_mass;
  switch (shape.dtype) {
    case DType::float64:
      return 0.0;
    case DType::float32:
      return 1e-7;
    default:
      return 1e-5;
  }
}

/// Options with no more threads than have something to do, unless the caller says how many: waking one takes
/// as long as reading some ten thousand logits, and far longer where other programs are busy.
Options with_useful_threads(const LossShape& shape, Options options) {
  if (options.threads > 0) return options;
  constexpr double kElementsPerThread = 40e3;
  const double nodes = static_cast<double>(shape.batch) * static_cast<double>(shape.frames) *
                       static_cast<double>(shape.labels + 1);
  const double elements =
      nodes * (static_cast<double>(shape.columns) * static_cast<double>(shape.hidden + 1) +
               16.0 * shape.arcs);
  const int threads = thread_count(options);
  options.threads = static_cast<int>(std::clamp(elements / kElementsPerThread, 1.0, 1.0 * threads));
  return options;
}

/// The arrays of the `index`-th utterance of a wave, with lengths, labels and existing arcs read.
Utterance make_utterance(const Call& call, const WorkspacePlan& plan, const Workspace& workspace,
                         std::int64_t b, std::int64_t index, double scale) {
  const LossShape& shape = call.valid.shape;
  const LossRequest& request = call.request;
  const auto slot = [&]<class T>(const char* name, std::int64_t each, T*) {
    return take_region<T>(plan, workspace, name).data() + index * each;
  };
  constexpr double* kDouble = nullptr;
  const std::int64_t rows = shape.labels + 1;
  const std::int64_t nodes = shape.frames * rows;
  Utterance utterance{.batch_index = b,
                      .frames = read_index(request.frame_lengths, {b}),
                      .labels = read_index(request.target_lengths, {b})};
  auto* targets = slot("targets", shape.labels, static_cast<std::int64_t*>(nullptr));
  auto* label_arcs = slot("label_arcs", rows, static_cast<std::uint32_t*>(nullptr));
  const auto count = static_cast<std::size_t>(utterance.labels);
  for (std::int64_t u = 0; u < utterance.labels && !call.valid.from_arc_weights; ++u) {
    targets[u] = read_index(request.targets, {b, u});
  }
  utterance.targets = {targets, count};
  utterance.label_arcs = {label_arcs, count + 1};
  for (std::int64_t u = 0; u <= utterance.labels; ++u) {
    label_arcs[u] =
        call.valid.from_arc_weights
            ? ~std::uint32_t{0}
            : arcs_for_label(call.valid.table, utterance.label(u), request.from_log_probs);
  }
  utterance.arc_weights = slot("arc_weights", nodes * shape.arcs, kDouble);
  utterance.group_log_sums = slot("group_log_sums", nodes * shape.groups, kDouble);
  utterance.alpha = slot("alpha", nodes + rows, kDouble);
  utterance.beta = slot("beta", nodes + rows, kDouble);
  utterance.start_scores = slot("start_scores", shape.frames + 1, kDouble);
  utterance.final_scores = slot("final_scores", shape.frames + 1, kDouble);
  utterance.scale = scale * upstream_of(request, b);
  return utterance;
}

bool wants_joint_gradient(const LossResult& result) {
  return result.encoder_gradient.defined() || result.predictor_gradient.defined() ||
         result.weight_gradient.defined() || result.bias_gradient.defined();
}

/// Which half of a call runs.
enum class Pass { whole, forward, backward, scores_backward };

/// The third stage over one wave, and what the posteriors give besides.
void write_gradients(const Call& call, const WorkspacePlan& plan, const Workspace& workspace,
                     std::span<Utterance> wave) {
  if (call.result.arc_scores_gradient.defined()) {
    add_arc_scores_gradient(call, wave,
                            take_region<double>(plan, workspace, "arc_scores_gradient"));
  }
  if (call.result.logits_gradient.defined()) {
    dense_gradient(call, wave, take_region<double>(plan, workspace, "logit_rows").data());
  }
  if (wants_joint_gradient(call.result)) joint_gradient(call, wave, plan, workspace);
}

/// The three stages over one wave. In a backward pass the first is a read of what the forward saved.
void run_wave(const Call& call, const WorkspacePlan& plan, const Workspace& workspace, Pass pass,
              const TensorRef& weights_gradient, std::span<Utterance> wave) {
  const LossRequest& request = call.request;
  double* logit_rows = take_region<double>(plan, workspace, "logit_rows").data();
  if (pass == Pass::backward) {
    load_scores(call, take_region<double>(plan, workspace, "saved_scores"), wave);
  } else if (std::holds_alternative<JointSource>(request.source)) {
    joint_scores(call, wave, plan, workspace);
  } else if (std::holds_alternative<DenseSource>(request.source)) {
    dense_scores(call, wave, logit_rows);
  } else {
    copy_arc_weights(call, wave);
  }
  if (pass == Pass::scores_backward) {
    load_weights_gradient(call, weights_gradient, wave);
    return write_gradients(call, plan, workspace, wave);
  }
  if (pass == Pass::forward) {
    save_scores(call, wave, take_region<double>(plan, workspace, "saved_scores"));
  }
  if (call.result.arc_weights.defined()) write_arc_weights(call, wave);
  for (Utterance& utterance : wave) load_boundary_scores(call, utterance);
  const bool taps = call.result.arc_posterior.defined() || call.result.occupancy.defined() ||
                    call.result.alpha.defined() || call.result.beta.defined() ||
                    call.result.skipped_mass.defined();
  const bool wants_beta = call.valid.shape.gradient || taps;
  lattice(call, wave, wants_beta, take_region<double>(plan, workspace, "lattice_rows").data());
  if (!wants_beta) return;
  posteriors(call, wave, skip_mass_of(request, call.valid.shape));
  write_lattice_outputs(call, wave);
  write_gradients(call, plan, workspace, wave);
}

void run(const LossRequest& request, const LossResult& result, const Options& options,
         const Workspace& workspace, Pass pass, const TensorRef& weights_gradient = {}) {
  ValidRequest valid = validate_on_host(request, result, options, "the cpu backend");
  valid.shape.apart = pass == Pass::forward || pass == Pass::backward;
  check(pass != Pass::forward || !valid.shape.gradient, request.caller,
        ": a gradient is asked of the forward pass, expected of the backward pass");
  const WorkspacePlan plan = plan_workspace(valid.shape, options);
  check_workspace(plan, workspace, options.workspace_limit, request.caller);
  const TapPlan taps = make_tap_plan(valid.table, request.from_log_probs);
  const Options useful = with_useful_threads(valid.shape, options);
  const Team team(useful, request.caller);
  const Call call{request, result, valid, taps, kernels(), team};
  const LossShape& shape = valid.shape;
  const double scale = reduction_scale(request, shape.batch);

  const bool joint = std::holds_alternative<JointSource>(request.source);
  if (joint) begin_joint(call, plan, workspace);
  if (result.arc_scores_gradient.defined()) {
    const std::span<double> sum = take_region<double>(plan, workspace, "arc_scores_gradient");
    std::fill(sum.begin(), sum.end(), 0.0);
  }
  double total = 0.0;
  bool poisoned = false;
  std::vector<Utterance> wave;
  const std::int64_t step = wave_size(shape);
  for (std::int64_t first = 0; first < shape.batch; first += step) {
    wave.clear();
    for (std::int64_t i = 0; i < step && first + i < shape.batch; ++i) {
      wave.push_back(make_utterance(call, plan, workspace, first + i, i, scale));
    }
    run_wave(call, plan, workspace, pass, weights_gradient, wave);
    for (const Utterance& utterance : wave) {
      const bool zeroed = request.zero_infinity && utterance.cost == kInfinity;
      const double cost = zeroed ? 0.0 : utterance.cost;
      if (result.costs.defined()) write_real(result.costs, {utterance.batch_index}, cost);
      total += cost;
      poisoned = poisoned || utterance.poisoned;
    }
  }
  if (result.total.defined()) write_real(result.total, {}, total * scale);
  if (joint && wants_joint_gradient(result)) end_joint(call, plan, workspace, poisoned);
  if (result.arc_scores_gradient.defined()) {
    write_arc_scores_gradient(call, take_region<double>(plan, workspace, "arc_scores_gradient"));
  }
}

}  // namespace

void loss(const LossRequest& request, const LossResult& result, const Options& options,
          const Workspace& workspace) {
  run(request, result, options, workspace, Pass::whole);
}

void forward(const LossRequest& request, const LossResult& result, const Options& options,
             const Workspace& workspace) {
  run(request, result, options, workspace, Pass::forward);
}

void backward(const LossRequest& request, const LossResult& result, const Options& options,
              const Workspace& workspace) {
  run(request, result, options, workspace, Pass::backward);
}

void scores_backward(const LossRequest& request, const TensorRef& weights_gradient,
                     const LossResult& result, const Options& options, const Workspace& workspace) {
  LossRequest unscaled = request;
  unscaled.reduction = Reduction::sum;
  unscaled.clamp = 0.0;
  const LossShape shape = shape_of(request, result);
  const std::int64_t expected[] = {shape.batch, shape.frames, shape.labels + 1, shape.arcs};
  check(weights_gradient.rank == 4 &&
            std::equal(std::begin(expected), std::end(expected), weights_gradient.extents) &&
            is_real(weights_gradient.dtype),
        request.caller, ": the gradient of the arc weights has shape ",
        weights_gradient.shape_string(), ", expected [", expected[0], ", ", expected[1], ", ",
        expected[2], ", ", expected[3], "] because that is the shape of the arc weights");
  run(unscaled, result, options, workspace, Pass::scores_backward, weights_gradient);
}

const char* instruction_set() { return kernels().instruction_set; }

}  // namespace transducer::cpu
