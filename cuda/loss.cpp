// SPDX-License-Identifier: Apache-2.0
#include "cuda/loss.hpp"

#include <algorithm>

#include "cuda/check.cuh"
#include "cuda/joint.hpp"
#include "cuda/stages.hpp"

namespace transducer::cuda {
namespace {

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

/// Every array of a call lies on one device.
void check_device(const LossRequest& request, const LossResult& result) {
  const Device* first = nullptr;
  const auto look = [&](const TensorRef& tensor, std::string_view name) {
    if (!tensor.defined()) return;
    check(tensor.device.type == DeviceType::cuda, request.caller, ": ", name,
          " is in host memory, expected a CUDA array because backend 'cuda' reads device memory "
          "only; lengths and targets count too");
    if (first == nullptr) first = &tensor.device;
    check(tensor.device == *first, request.caller, ": ", name, " is on cuda device ",
          tensor.device.index, ", expected ", first->index, ", where the other arrays are");
  };
  if (const auto* dense = std::get_if<DenseSource>(&request.source)) {
    look(dense->logits, "logits");
  } else if (const auto* joint = std::get_if<JointSource>(&request.source)) {
    look(joint->encoder, "encoder");
    look(joint->predictor, "predictor");
    look(joint->weight, "weight");
    look(joint->bias, "bias");
    look(joint->predictor_mask, "predictor_mask");
    look(joint->utterance_ids, "utterance_ids");
  } else {
    look(std::get<ArcWeightSource>(request.source).arc_weights, "arc_weights");
  }
  look(request.targets, "targets");
  look(request.frame_lengths, "the frame lengths");
  look(request.target_lengths, "target_lengths");
  look(request.arc_scores, "arc_scores");
  look(request.band, "band");
  look(request.start_scores, "start_scores");
  look(request.final_scores, "final_scores");
  look(request.upstream, "upstream");
  for (const TensorRef* tensor :
       {&result.costs, &result.total, &result.logits_gradient, &result.encoder_gradient,
        &result.predictor_gradient, &result.weight_gradient, &result.bias_gradient,
        &result.arc_weights_gradient, &result.arc_scores_gradient, &result.start_scores_gradient,
        &result.final_scores_gradient, &result.arc_weights, &result.alpha, &result.beta,
        &result.arc_posterior, &result.occupancy, &result.skipped_mass}) {
    look(*tensor, "an output");
  }
}

CallView make_view(const LossRequest& request, const ValidRequest& valid) {
  const LossShape& shape = valid.shape;
  CallView view;
  view.batch = static_cast<int>(shape.batch);
  view.frames = static_cast<int>(shape.frames);
  view.labels = static_cast<int>(shape.labels);
  view.columns = shape.columns;
  view.vocabulary = shape.columns - valid.table.heads;
  view.hidden = shape.hidden;
  view.plane = plane_elements(shape);
  view.frame_lengths = index_view(request.frame_lengths);
  view.target_lengths = index_view(request.target_lengths);
  view.targets = index_view(request.targets);
  view.band = index_view(request.band);
  view.plan = make_tap_plan(valid.table, request.from_log_probs);
  if (valid.from_arc_weights) view.plan.num_taps = 0;  // columns of weights are no logits
  view.clamp = request.clamp;
  view.from_arc_weights = valid.from_arc_weights;
  return view;
}

bool wants_posteriors(const LossResult& result) {
  return result.arc_posterior.defined() || result.occupancy.defined() ||
         result.skipped_mass.defined();
}

bool wants_joint_gradient(const LossResult& result) {
  return result.encoder_gradient.defined() || result.predictor_gradient.defined() ||
         result.weight_gradient.defined() || result.bias_gradient.defined();
}

enum class Pass { forward, backward, both, scores_backward };

template <class Real>
void run(const LossRequest& request, const LossResult& result, const ValidRequest& valid,
         const WorkspacePlan& plan, const Workspace& workspace, Stream stream, Pass pass,
         const TensorRef& weights_gradient) {
  const LossShape& shape = valid.shape;
  const Call<Real> call{
      request, result, valid, make_view(request, valid), take_memory<Real>(shape, plan, workspace),
      stream};
  const bool dense = std::holds_alternative<DenseSource>(request.source);
  const auto* joint = std::get_if<JointSource>(&request.source);
  const LatticeView<Real> lattice_view{.node_scores = call.memory.node_scores,
                                       .arcs = call.memory.arcs,
                                       .state = call.memory.state,
                                       .scale = call.memory.scale,
                                       .reachable = call.memory.reachable,
                                       .kept = call.memory.kept};
  if (pass != Pass::backward) {
    prepare(call);
    if (dense) dense_scores(call);
    if (joint != nullptr) {
      reachable_rows(call);
      joint_scores(call.view, *joint, lattice_view, call.memory.joint, stream);
    }
    make_arc_weights(call);
    write_arc_weights(call);
    if (pass == Pass::scores_backward) {
      load_weights_gradient(call, weights_gradient);
    } else {
      settle_poison(call);
      lattice(call, shape.gradient || wants_posteriors(result), skip_mass_of(request, shape));
    }
  }
  write_costs(call, pass == Pass::forward || pass == Pass::both, pass != Pass::forward);
  if (pass == Pass::forward) return;
  if (result.logits_gradient.defined()) dense_gradient(call);
  if (joint != nullptr && wants_joint_gradient(result)) {
    joint_gradient(call.view, *joint, lattice_view, result, call.memory.joint, stream);
  }
  boundary_and_arc_gradients(call);
}

void execute(const LossRequest& request, const LossResult& result, const Options& options,
             const Workspace& workspace, Stream stream, Pass pass,
             const TensorRef& weights_gradient = {}) {
  check_device(request, result);
  Options unread = options;
  unread.validate =
      false;  // labels and lengths lie on the device, and reading them would wait for it
  ValidRequest valid = validate(request, result, unread);
  const bool apart = pass == Pass::forward || pass == Pass::backward;
  if (apart) valid.shape.gradient = valid.shape.apart = true;
  const WorkspacePlan plan = plan_workspace(valid.shape, options);
  check_workspace(plan, workspace, options.workspace_limit, request.caller);
  if (valid.shape.dtype == DType::float64) {
    run<double>(request, result, valid, plan, workspace, stream, pass, weights_gradient);
  } else {
    run<float>(request, result, valid, plan, workspace, stream, pass, weights_gradient);
  }
}

}  // namespace

void forward(const LossRequest& request, const LossResult& result, const Options& options,
             const Workspace& workspace, Stream stream) {
  execute(request, result, options, workspace, stream, Pass::forward);
}

void backward(const LossRequest& request, const LossResult& result, const Options& options,
              const Workspace& workspace, Stream stream) {
  execute(request, result, options, workspace, stream, Pass::backward);
}

void loss(const LossRequest& request, const LossResult& result, const Options& options,
          const Workspace& workspace, Stream stream) {
  execute(request, result, options, workspace, stream, Pass::both);
}

void scores_backward(const LossRequest& request, const TensorRef& weights_gradient,
                     const LossResult& result, const Options& options, const Workspace& workspace,
                     Stream stream) {
  LossRequest unscaled = request;
  unscaled.reduction = Reduction::sum;
  unscaled.upstream = {};
  unscaled.clamp = 0.0;
  const LossShape shape = shape_of(request, result);
  const std::int64_t expected[] = {shape.batch, shape.frames, shape.labels + 1, shape.arcs};
  check(weights_gradient.rank == 4 &&
            std::equal(expected, expected + 4, weights_gradient.extents) &&
            is_real(weights_gradient.dtype) && weights_gradient.device.type == DeviceType::cuda,
        request.caller, ": the gradient of the arc weights has shape ",
        weights_gradient.shape_string(), ", expected [", expected[0], ", ", expected[1], ", ",
        expected[2], ", ", expected[3],
        "] on the device because that is the shape of the arc weights");
  execute(unscaled, result, options, workspace, stream, Pass::scores_backward, weights_gradient);
}

}  // namespace transducer::cuda
