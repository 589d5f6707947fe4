// SPDX-License-Identifier: Apache-2.0
//
// Host side of the joint source for one element type: scratch, parameters, launches. Included by the files
// that instantiate it, one per type; joint.cu chooses among them.
#pragma once

#include <algorithm>
#include <span>

#include "cuda/check.cuh"
#include "cuda/joint.hpp"
#include "cuda/joint_memory.hpp"
#include "cuda/kernels/joint_prepare.cuh"
#include "cuda/kernels/joint_scores.cuh"

namespace transducer::cuda {

inline UnitArray unit_array(const TensorRef& tensor) {
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  UnitArray array;
  array.tensor = tensor;
  array.aligned = tensor.strides[2] == 1 && tensor.strides[0] * bytes % 16 == 0 &&
                  tensor.strides[1] * bytes % 16 == 0 &&
                  reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
  return array;
}

inline JointView joint_view(const JointSource& source, std::int64_t hidden) {
  JointView view;
  view.encoder = unit_array(source.encoder);
  view.predictor = unit_array(source.predictor);
  view.mask = source.predictor_mask;
  view.ids = source.utterance_ids;
  view.hidden = static_cast<int>(hidden);
  view.activation = source.activation;
  view.drop_below = dropout_threshold(source.dropout);
  view.keep_scale = source.dropout < 1.0 ? 1.0 / (1.0 - source.dropout) : 0.0;
  view.seed = source.seed;
  return view;
}

template <class Element, int kPlanes, bool kHopper>
class JointLauncher {
 public:
  using Shape = Tile<Element, kHopper>;
  using Real = typename Shape::Real;

  JointLauncher(const CallView& call, const JointSource& source, const LatticeView<Real>& lattice,
                std::span<std::byte> scratch, Stream stream)
      : call_(call), source_(source), lattice_(lattice), scratch_(scratch), stream_(stream) {
    const JointShape shape{.frames = static_cast<std::int64_t>(call.batch) * call.frames,
                           .rows = call.rows(),
                           .columns = call.columns,
                           .hidden = call.hidden,
                           .element_bytes = static_cast<int>(sizeof(Element)),
                           .planes = kPlanes,
                           .real_bytes = static_cast<int>(sizeof(Real)),
                           .tile_rows = Shape::kRows,
                           .groups = std::max(call.plan.num_groups, 1),
                           .taps = call.plan.num_taps};
    sizes_ = joint_sizes(shape, static_cast<std::int64_t>(scratch.size()));
    int device = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    check_cuda(cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, device),
               "cudaDeviceGetAttribute");
    check_cuda(
        cudaDeviceGetAttribute(&most_shared_, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "cudaDeviceGetAttribute");
  }

  void scores() {
    check(sizes_.slots > 0, "cuda: the joint source's scores need more scratch than ",
          scratch_.size(), " bytes, at least ", sizes_.scores_bytes);
    if (call_.plan.num_groups <= 1) {
      scores_for<1>();
    } else {
      scores_for<kMaxGroups>();
    }
  }

  void gradient(const LossResult& result) {
    check(sizes_.chunk_rows > 0, "cuda: the joint source's gradient needs more scratch than ",
          scratch_.size(), " bytes, at least ", sizes_.gradient_bytes);
    if (call_.plan.num_groups <= 1) {
      gradient_for<1>(result);
    } else {
      gradient_for<kMaxGroups>(result);
    }
  }

 private:
  template <int kGroups>
  void scores_for() {
    // h stays in shared memory where the device has room for a tile of it.
    if constexpr (Shape::kTensorCores && kPlanes == 1) {
      using Block = JointScores<Element, kPlanes, kHopper, kGroups, true>;
      if (Block::shared_bytes(padded_hidden()) <= most_shared_) {
        launch_scores<kGroups, true>();
        return;
      }
    }
    launch_scores<kGroups, false>();
  }

  int padded_hidden() const { return static_cast<int>(sizes_.padded_hidden); }

  void prepare_weight(bool finite, Element* out, Real* bias) {
    const PrepareWeightParams<Element> params{.weight = source_.weight,
                                              .bias = source_.bias,
                                              .columns = call_.columns,
                                              .hidden = call_.hidden,
                                              .padded_columns = sizes_.padded_columns,
                                              .padded_hidden = padded_hidden(),
                                              .finite = finite,
                                              .out = out,
                                              .out_bias = bias};
    prepare_weight_kernel<Element, kPlanes><<<4 * processors_, 256, 0, stream_>>>(params);
    check_launch("prepare_weight_kernel");
  }

  template <class Kernel>
  void allow_shared(Kernel kernel, int bytes) {
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "cudaFuncSetAttribute");
  }

  template <int kGroups, bool kResident>
  void launch_scores() {
    using Block = JointScores<Element, kPlanes, kHopper, kGroups, kResident>;
    Carver carve(scratch_.data());
    const std::int64_t plane = sizes_.padded_columns * sizes_.padded_hidden;
    JointScoresParams<Element> params{};
    auto* weight = carve.take<Element>(kPlanes * plane);
    auto* bias = carve.take<Real>(sizes_.padded_columns);
    prepare_weight(false, weight, bias);
    params.call = call_;
    params.joint = joint_view(source_, call_.hidden);
    params.rows = lattice_.reachable;
    params.weight = weight;
    params.weight_plane = plane;
    params.bias = bias;
    params.slots = carve.take<Element>(0);
    params.padded_hidden = padded_hidden();
    params.node_scores = lattice_.node_scores;
    const auto kernel = joint_scores_kernel<Element, kPlanes, kHopper, kGroups, kResident>;
    const int shared = Block::shared_bytes(padded_hidden());
    allow_shared(kernel, shared);
    const int blocks = kResident ? processors_ : std::min(processors_, sizes_.slots);
    kernel<<<blocks, kThreads, shared, stream_>>>(params);
    check_launch("joint_scores_kernel");
  }

  JointGradientParams<Element> carve_gradient() {
    Carver carve(scratch_.data());
    JointGradientParams<Element> params{};
    const std::int64_t hidden = sizes_.padded_hidden;
    const std::int64_t columns = sizes_.padded_columns;
    const std::int64_t capacity = sizes_.capacity;
    const std::int64_t groups = std::max(call_.plan.num_groups, 1);
    params.weight_plane = columns * hidden;
    params.weight = carve.take<Element>(kPlanes * params.weight_plane);
    params.bias = carve.take<Real>(columns);
    params.power = carve.take<float>(1);
    params.arrived = carve.take<unsigned>(1);
    params.chunk_frames = carve.take<std::int64_t>(sizes_.chunks + 1);
    params.carry = carve.take<Real>(2 * call_.rows() * hidden);
    params.weight_sums = carve.take<Real>(sizes_.splits * columns * hidden);
    params.bias_sums = carve.take<Real>(sizes_.splits * columns);
    params.hidden = carve.take<Element>(kPlanes * capacity * hidden);
    params.gradient = carve.take<Element>(kPlanes * capacity * sizes_.range);
    params.hidden_gradient = carve.take<Real>(capacity * hidden);
    params.coefficient = carve.take<Real>(groups * capacity);
    params.log_sum = carve.take<Real>(groups * capacity);
    params.amount = carve.take<Real>(call_.plan.num_taps * capacity);
    params.row_scale = carve.take<Real>(capacity);
    params.label = carve.take<int>(capacity);
    params.row_u = carve.take<int>(2 * capacity);
    check(carve.used() <= static_cast<std::int64_t>(scratch_.size()),
          "cuda: the joint source's pieces take ", carve.used(), " bytes of ", scratch_.size());
    return params;
  }

  template <int kGroups>
  void gradient_for(const LossResult& result) {
    JointGradientParams<Element> params = carve_gradient();
    prepare_weight(true, const_cast<Element*>(params.weight), const_cast<Real*>(params.bias));
    const PrepareChunksParams chunks{.rows = lattice_.kept,
                                     .chunk_rows = sizes_.chunk_rows,
                                     .chunks = sizes_.chunks,
                                     .chunk_frames = const_cast<std::int64_t*>(params.chunk_frames),
                                     .scale = lattice_.scale,
                                     .batch = call_.batch,
                                     .power = const_cast<float*>(params.power),
                                     .arrived = params.arrived};
    prepare_chunks_kernel<Element>
        <<<static_cast<unsigned>(sizes_.chunks / 256 + 1), 256, 0, stream_>>>(chunks);
    check_launch("prepare_chunks_kernel");
    params.call = call_;
    params.joint = joint_view(source_, call_.hidden);
    params.rows = lattice_.kept;
    params.node_scores = lattice_.node_scores;
    params.posteriors = lattice_.arcs;
    params.scale = lattice_.scale;
    params.padded_hidden = padded_hidden();
    params.range = static_cast<int>(sizes_.range);
    params.splits = sizes_.splits;
    params.chunk_rows = sizes_.chunk_rows;
    params.capacity = sizes_.capacity;
    params.encoder_gradient = result.encoder_gradient;
    params.predictor_gradient = result.predictor_gradient;
    params.wants_inputs = result.encoder_gradient.defined() || result.predictor_gradient.defined();
    params.wants_weight = result.weight_gradient.defined() || result.bias_gradient.defined();
    using Block = JointGradient<Element, kPlanes, kHopper, kGroups>;
    const auto kernel = joint_gradient_kernel<Element, kPlanes, kHopper, kGroups>;
    allow_shared(kernel, Block::kSharedBytes);
    void* arguments[] = {&params};
    check_cuda(cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel),
                                           dim3(static_cast<unsigned>(processors_)), dim3(kThreads),
                                           arguments, Block::kSharedBytes, stream_),
               "joint_gradient_kernel");
    finish(params, result);
  }

  void finish(const JointGradientParams<Element>& params, const LossResult& result) {
    if (call_.frames == 0 && result.predictor_gradient.defined()) {
      zero_rows_kernel<Real><<<processors_, 256, 0, stream_>>>(result.predictor_gradient);
      check_launch("zero_rows_kernel");
    }
    if (!params.wants_weight) return;
    const FinishWeightParams<Real> weight{.weight_sums = params.weight_sums,
                                          .bias_sums = params.bias_sums,
                                          .power = params.power,
                                          .splits = sizes_.splits,
                                          .columns = call_.columns,
                                          .hidden = call_.hidden,
                                          .padded_columns = sizes_.padded_columns,
                                          .padded_hidden = padded_hidden(),
                                          .weight_gradient = result.weight_gradient,
                                          .bias_gradient = result.bias_gradient};
    finish_weight_kernel<Real><<<4 * processors_, 256, 0, stream_>>>(weight);
    check_launch("finish_weight_kernel");
  }

  const CallView& call_;
  const JointSource& source_;
  const LatticeView<Real>& lattice_;
  std::span<std::byte> scratch_;
  Stream stream_;
  JointSizes sizes_;
  int processors_ = 1;
  int most_shared_ = 0;
};

/// Both stages for one element type; instantiated in joint_<type>.cu and, for Hopper, joint_hopper_<type>.cu.
template <class Element, int kPlanes, bool kHopper>
void launch_joint_scores(const CallView& call, const JointSource& source,
                         const LatticeView<RealOf<Element>>& lattice, std::span<std::byte> scratch,
                         Stream stream) {
  JointLauncher<Element, kPlanes, kHopper>(call, source, lattice, scratch, stream).scores();
}

template <class Element, int kPlanes, bool kHopper>
void launch_joint_gradient(const CallView& call, const JointSource& source,
                           const LatticeView<RealOf<Element>>& lattice, const LossResult& result,
                           std::span<std::byte> scratch, Stream stream) {
  JointLauncher<Element, kPlanes, kHopper>(call, source, lattice, scratch, stream).gradient(result);
}

#define TX_JOINT_INSTANCE(PREFIX, ELEMENT, PLANES, HOPPER)                                         \
  PREFIX template void launch_joint_scores<ELEMENT, PLANES, HOPPER>(                               \
      const CallView&, const JointSource&, const LatticeView<RealOf<ELEMENT>>&,                    \
      std::span<std::byte>, Stream);                                                               \
  PREFIX template void launch_joint_gradient<ELEMENT, PLANES, HOPPER>(                             \
      const CallView&, const JointSource&, const LatticeView<RealOf<ELEMENT>>&, const LossResult&, \
      std::span<std::byte>, Stream)

}  // namespace transducer::cuda
