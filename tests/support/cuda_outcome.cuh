// SPDX-License-Identifier: Apache-2.0
//
// A DenseBatch on the CUDA layer. Arrays in host memory are copied to the device as they lie, gaps included,
// and outputs come back the same way; the workspace has exactly the planned size and holds NaN. Everything runs
// on a stream that is not the default one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "cuda/check.cuh"
#include "cuda/loss.hpp"
#include "tests/support/layer_outcome.hpp"

namespace transducer::testing {

/// Device memory that one call of a test uses and the next one uses again.
class DeviceArena {
 public:
  static DeviceArena& instance() {
    static DeviceArena arena;
    return arena;
  }
  void* take(std::size_t bytes) {
    const std::size_t rounded = (bytes + 255) / 256 * 256 + 256;
    if (used_ + rounded > size_) {
      // A larger call than ever before: its pieces are allocated one by one and freed with the arena.
      void* piece = nullptr;
      cuda::check_cuda(cudaMalloc(&piece, rounded), "cudaMalloc");
      pieces_.push_back(piece);
      return piece;
    }
    void* at = memory_ + used_;
    used_ += rounded;
    return at;
  }
  void reset() {
    used_ = 0;
    for (void* piece : pieces_) cuda::check_cuda(cudaFree(piece), "cudaFree");
    pieces_.clear();
  }
  cudaStream_t stream() const { return stream_; }

 private:
  DeviceArena() {
    cuda::check_cuda(cudaMalloc(reinterpret_cast<void**>(&memory_), size_), "cudaMalloc");
    cuda::check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                     "cudaStreamCreate");
  }

  std::byte* memory_ = nullptr;
  std::size_t size_ = std::size_t{64} << 20;
  std::size_t used_ = 0;
  std::vector<void*> pieces_;
  cudaStream_t stream_ = nullptr;
};

/// Copies of host arrays on the device; arrays over the same host memory share their copy.
class DeviceCopies {
 public:
  TensorRef copy(const TensorRef& host) {
    if (!host.defined()) return host;
    const auto bytes = static_cast<std::int64_t>(dtype_bytes(host.dtype));
    std::int64_t low = 0;
    std::int64_t high = 1;
    for (int axis = 0; axis < host.rank; ++axis) {
      const std::int64_t reach = (host.extents[axis] - 1) * host.strides[axis];
      (reach < 0 ? low : high) += reach;
    }
    if (host.size() == 0) low = high = 0;
    auto* begin = static_cast<std::byte*>(host.data) + low * bytes;
    const auto size = static_cast<std::size_t>((high - low) * bytes);
    const auto [entry, is_new] = copies_.try_emplace({begin, size}, nullptr);
    if (is_new) {
      entry->second = DeviceArena::instance().take(size);
      if (size > 0) {
        cuda::check_cuda(cudaMemcpy(entry->second, begin, size, cudaMemcpyHostToDevice),
                         "to device");
      }
    }
    TensorRef device = host;
    device.data = static_cast<std::byte*>(entry->second) - low * bytes;
    device.device = {DeviceType::cuda, 0};
    return device;
  }
  void fetch() const {
    for (const auto& [host, device] : copies_) {
      if (host.second == 0) continue;
      cuda::check_cuda(cudaMemcpy(host.first, device, host.second, cudaMemcpyDeviceToHost),
                       "to host");
    }
  }

 private:
  std::map<std::pair<std::byte*, std::size_t>, void*> copies_;
};

inline LossRequest on_device(const LossRequest& host, DeviceCopies& copies) {
  LossRequest request = host;
  if (auto* dense = std::get_if<DenseSource>(&request.source)) {
    dense->logits = copies.copy(dense->logits);
  } else if (auto* joint = std::get_if<JointSource>(&request.source)) {
    for (TensorRef* tensor : {&joint->encoder, &joint->predictor, &joint->weight, &joint->bias,
                              &joint->predictor_mask, &joint->utterance_ids}) {
      *tensor = copies.copy(*tensor);
    }
  } else {
    auto& source = std::get<ArcWeightSource>(request.source);
    source.arc_weights = copies.copy(source.arc_weights);
  }
  for (TensorRef* tensor :
       {&request.targets, &request.frame_lengths, &request.target_lengths, &request.arc_scores,
        &request.band, &request.start_scores, &request.final_scores, &request.upstream}) {
    *tensor = copies.copy(*tensor);
  }
  return request;
}

inline LossResult on_device(const LossResult& host, DeviceCopies& copies) {
  LossResult result = host;
  for (TensorRef* tensor :
       {&result.costs, &result.total, &result.logits_gradient, &result.encoder_gradient,
        &result.predictor_gradient, &result.weight_gradient, &result.bias_gradient,
        &result.arc_weights_gradient, &result.arc_scores_gradient, &result.start_scores_gradient,
        &result.final_scores_gradient, &result.arc_weights, &result.alpha, &result.beta,
        &result.arc_posterior, &result.occupancy, &result.skipped_mass}) {
    *tensor = copies.copy(*tensor);
  }
  return result;
}

/// A workspace of the planned bytes on the device, every byte 0xff.
inline Workspace device_workspace(const WorkspacePlan& plan) {
  const auto take = [](std::size_t bytes) {
    auto* memory = static_cast<std::byte*>(DeviceArena::instance().take(bytes));
    cuda::check_cuda(cudaMemset(memory, 0xff, bytes), "cudaMemset");
    return std::span(memory, bytes);
  };
  return {.scratch = take(plan.scratch_bytes()), .saved = take(plan.saved_bytes())};
}

enum class CudaPasses { together, apart };

/// Runs a request whose arrays are in host memory. `apart`: forward, then backward twice, with scratch made
/// NaN in between.
inline void run_cuda(const LossRequest& host_request, const LossResult& host_result,
                     const Options& options = {}, CudaPasses passes = CudaPasses::together) {
  DeviceArena& arena = DeviceArena::instance();
  DeviceCopies copies;
  const LossRequest request = on_device(host_request, copies);
  const LossResult result = on_device(host_result, copies);
  LossShape shape = shape_of(request, result);
  if (passes == CudaPasses::apart) shape.gradient = shape.apart = true;
  const Workspace workspace = device_workspace(cuda::plan_workspace(shape, options));
  cuda::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  if (passes == CudaPasses::together) {
    cuda::loss(request, result, options, workspace, arena.stream());
  } else {
    cuda::forward(request, result, options, workspace, arena.stream());
    for (int i = 0; i < 2; ++i) {
      cuda::check_cuda(
          cudaMemsetAsync(workspace.scratch.data(), 0xff, workspace.scratch.size(), arena.stream()),
          "cudaMemsetAsync");
      cuda::backward(request, result, options, workspace, arena.stream());
    }
  }
  cuda::check_cuda(cudaStreamSynchronize(arena.stream()), "cudaStreamSynchronize");
  copies.fetch();
  arena.reset();
}

inline LayerOutcome run_cuda(DenseBatch& batch, const LayerRun& run = {},
                             CudaPasses passes = CudaPasses::together) {
  return run_layer(batch, run, [&](const auto& request, const auto& result, const auto& options) {
    run_cuda(request, result, options, passes);
  });
}

}  // namespace transducer::testing
