// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/check.cuh"
#include "cuda/kernels/dense_gradient.cuh"
#include "cuda/kernels/outputs.cuh"
#include "cuda/stages.hpp"

namespace transducer::cuda {
namespace {

template <class Real>
void arc_scores_gradient(const Call<Real>& call) {
  const TensorRef& out = call.valid.arc_scores_gradient;
  const CallView& view = call.view;
  ArcScoresGradientParams<Real> params{
      .call = view,
      .memory = call.memory,
      .out = out,
      .extents = {view.batch, view.frames, view.rows(), view.plan.num_arcs},
      .num_elements = 1,
      .num_summed = 1};
  for (int axis = 0; axis < 4; ++axis) {
    const bool stays = out.strides[axis] != 0 || params.extents[axis] == 1;
    params.kept[axis] = stays ? params.extents[axis] : 1;
    params.summed[axis] = stays ? 1 : params.extents[axis];
    params.num_elements *= params.kept[axis];
    params.num_summed *= params.summed[axis];
  }
  if (params.num_elements == 0) return;
  const dim3 threads = params.num_summed > 8 ? dim3(256, 1) : dim3(1, 256);
  const auto blocks = static_cast<unsigned>((params.num_elements + threads.y - 1) / threads.y);
  arc_scores_gradient_kernel<Real><<<blocks, threads, 0, call.stream>>>(params);
  check_launch("arc_scores_gradient");
}

}  // namespace

template <class Real>
void dense_gradient(const Call<Real>& call) {
  const TensorRef& logits = std::get<DenseSource>(call.request.source).logits;
  const TensorRef& out = call.result.logits_gradient;
  const CallView& view = call.view;
  const Memory<Real>& memory = call.memory;
  DenseGradientParams<Real> params{
      .call = view,
      .lattice = {memory.node_scores, memory.arcs, memory.state, memory.scale, {}, memory.kept},
      .logits = logits.data,
      .gradient = out.data};
  std::copy_n(logits.strides, 4, params.strides);
  std::copy_n(out.strides, 4, params.out_strides);
  const std::int64_t frames = static_cast<std::int64_t>(view.batch) * view.frames;
  if (frames == 0) return;
  const bool is_short = rows_are_short(view);
  const std::int64_t blocks =
      frames * (is_short ? row_groups<8>(view.rows()) : row_groups<32>(view.rows()));
  visit_storage(logits.dtype, [&]<class Storage>() {
    if constexpr (std::is_same_v<Storage, double> == std::is_same_v<Real, double>) {
      const auto launch = [&](auto kernel) {
        kernel<<<static_cast<unsigned>(blocks), kRowThreads, 0, call.stream>>>(params);
        check_launch("dense_gradient");
      };
      const bool whole = one_whole_group(view);
      if (is_short) {
        launch(whole ? dense_gradient_kernel<Storage, Real, true, 8>
                     : dense_gradient_kernel<Storage, Real, false, 8>);
      } else {
        launch(whole ? dense_gradient_kernel<Storage, Real, true, 32>
                     : dense_gradient_kernel<Storage, Real, false, 32>);
      }
    }
  });
}

template <class Real>
void boundary_and_arc_gradients(const Call<Real>& call) {
  const CallView& view = call.view;
  const LossResult& result = call.result;
  if (view.batch == 0) {
    if (result.arc_scores_gradient.defined()) arc_scores_gradient(call);
    return;
  }
  if (result.arc_weights_gradient.defined() && view.frames > 0) {
    const ArcOutputParams<Real> params{view, call.memory, result.arc_weights_gradient,
                                       call.memory.scale, 0.0};
    write_arcs_kernel<Real>
        <<<frame_blocks(view.batch, view.frames), frame_threads(), 0, call.stream>>>(params);
    check_launch("write_arcs");
  }
  if (result.start_scores_gradient.defined() || result.final_scores_gradient.defined()) {
    const BoundaryGradientParams<Real> params{view, call.memory, result.start_scores_gradient,
                                              result.final_scores_gradient};
    boundary_gradients_kernel<Real><<<view.batch, 128, 0, call.stream>>>(params);
    check_launch("boundary_gradients");
  }
  if (result.arc_scores_gradient.defined()) arc_scores_gradient(call);
}

template <class Real>
void write_costs(const Call<Real>& call, bool with_costs, bool with_scale) {
  CostsParams params{.call = call.view,
                     .costs = call.memory.costs,
                     .upstream = call.request.upstream,
                     .scale = with_scale ? call.memory.scale : nullptr,
                     .reduction = call.request.reduction,
                     .zero_infinity = call.request.zero_infinity};
  if (with_costs) {
    params.out = call.result.costs;
    params.total = call.result.total;
  }
  costs_kernel<<<1, 256, 0, call.stream>>>(params);
  check_launch("costs");
}

template void dense_gradient<float>(const Call<float>&);
template void dense_gradient<double>(const Call<double>&);
template void boundary_and_arc_gradients<float>(const Call<float>&);
template void boundary_and_arc_gradients<double>(const Call<double>&);
template void write_costs<float>(const Call<float>&, bool, bool);
template void write_costs<double>(const Call<double>&, bool, bool);

}  // namespace transducer::cuda
