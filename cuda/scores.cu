// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/check.cuh"
#include "cuda/kernels/arc_weights.cuh"
#include "cuda/kernels/dense_scores.cuh"
#include "cuda/stages.hpp"

namespace transducer::cuda {
namespace {

template <class Real>
ArcWeightsParams<Real> arc_weights_params(const Call<Real>& call) {
  ArcWeightsParams<Real> params{call.view,
                                call.memory,
                                call.valid.arc_scores,
                                {},
                                call.request.start_scores,
                                call.request.final_scores};
  if (const auto* source = std::get_if<ArcWeightSource>(&call.request.source)) {
    params.arc_weights = source->arc_weights;
  }
  return params;
}

}  // namespace

template <class Real>
void dense_scores(const Call<Real>& call) {
  const TensorRef& logits = std::get<DenseSource>(call.request.source).logits;
  DenseScoresParams params{call.view, logits.data, {}, call.memory.node_scores};
  std::copy_n(logits.strides, 4, params.strides);
  const CallView& view = call.view;
  const std::int64_t frames = static_cast<std::int64_t>(view.batch) * view.frames;
  if (frames == 0) return;
  const bool is_short = rows_are_short(view);
  const std::int64_t blocks =
      frames * (is_short ? row_groups<8>(view.rows()) : row_groups<32>(view.rows()));
  visit_storage(logits.dtype, [&]<class Storage>() {
    if constexpr (std::is_same_v<Storage, double> == std::is_same_v<Real, double>) {
      const auto launch = [&](auto kernel) {
        kernel<<<static_cast<unsigned>(blocks), kRowThreads, 0, call.stream>>>(params);
        check_launch("dense_scores");
      };
      const bool whole = one_whole_group(view);
      if (is_short) {
        launch(whole ? dense_scores_kernel<Storage, Real, true, 8>
                     : dense_scores_kernel<Storage, Real, false, 8>);
      } else {
        launch(whole ? dense_scores_kernel<Storage, Real, true, 32>
                     : dense_scores_kernel<Storage, Real, false, 32>);
      }
    }
  });
}

template <class Real>
void prepare(const Call<Real>& call) {
  if (call.view.batch == 0) return;
  const PrepareParams<Real> params{arc_weights_params(call), call.valid.table,
                                   call.request.from_log_probs};
  prepare_kernel<Real><<<call.view.batch, 128, 0, call.stream>>>(params);
  check_launch("prepare");
}

template <class Real>
void make_arc_weights(const Call<Real>& call) {
  const CallView& view = call.view;
  if (view.batch == 0) return;
  const ArcWeightsParams<Real> params = arc_weights_params(call);
  if (view.frames > 0) {
    arc_weights_kernel<Real>
        <<<frame_blocks(view.batch, view.frames), frame_threads(), 0, call.stream>>>(params);
    check_launch("arc_weights");
  }
}

template <class Real>
void settle_poison(const Call<Real>& call) {
  if (call.view.batch == 0) return;
  settle_kernel<Real><<<call.view.batch, 256, 0, call.stream>>>(arc_weights_params(call));
  check_launch("settle");
}

template void dense_scores<float>(const Call<float>&);
template void dense_scores<double>(const Call<double>&);
template void prepare<float>(const Call<float>&);
template void prepare<double>(const Call<double>&);
template void make_arc_weights<float>(const Call<float>&);
template void make_arc_weights<double>(const Call<double>&);
template void settle_poison<float>(const Call<float>&);
template void settle_poison<double>(const Call<double>&);

}  // namespace transducer::cuda
