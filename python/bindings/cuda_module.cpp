// SPDX-License-Identifier: Apache-2.0
//
// The extension module flash_transducer._cuda: the CUDA layer behind the capsule that cuda_backend.hpp
// describes. It imports without a driver or a device; the first call says what is missing.
#include <limits>
#include <map>
#include <mutex>

#include <cuda_runtime_api.h>
#include <pybind11/pybind11.h>

#include "cuda/check.cuh"
#include "cuda/loss.hpp"
#include "python/bindings/cuda_backend.hpp"
#include "reference/core/validate.hpp"

namespace py = pybind11;

namespace transducer::python {
namespace {

using cuda::check_cuda;

/// Makes a device current while it lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    if (device != before_) check_cuda(cudaSetDevice(device), "cudaSetDevice");
  }
  ~DeviceGuard() { (void)cudaSetDevice(before_); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
};

/// The pool of a device. It keeps what was freed: a training step asks for the same bytes every time.
cudaMemPool_t pool_of(int device) {
  static std::mutex mutex;
  static std::map<int, cudaMemPool_t> pools;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = pools.try_emplace(device, nullptr);
  if (!is_new) return entry->second;
  try {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, device};
    check_cuda(cudaMemPoolCreate(&entry->second, &properties), "cudaMemPoolCreate");
    std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
    check_cuda(cudaMemPoolSetAttribute(entry->second, cudaMemPoolAttrReleaseThreshold, &keep),
               "cudaMemPoolSetAttribute");
  } catch (...) {
    pools.erase(entry);
    throw;
  }
  return entry->second;
}

/// Device memory in stream order.
class StreamMemory {
 public:
  StreamMemory(std::size_t bytes, int device, cudaStream_t stream)
      : bytes_(bytes), stream_(stream) {
    if (bytes == 0) return;
    check_cuda(cudaMallocFromPoolAsync(&data_, bytes, pool_of(device), stream),
               "cudaMallocFromPoolAsync");
  }
  ~StreamMemory() {
    if (data_ != nullptr) (void)cudaFreeAsync(data_, stream_);
  }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  std::span<std::byte> span() const { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
  cudaStream_t stream_;
};

const TensorRef& first_input(const LossRequest& request) {
  if (const auto* dense = std::get_if<DenseSource>(&request.source)) return dense->logits;
  if (const auto* joint = std::get_if<JointSource>(&request.source)) return joint->encoder;
  return std::get<ArcWeightSource>(request.source).arc_weights;
}

void run(Pass pass, const LossRequest& request, const LossResult& result, const Options& options,
         const PassData& data) {
  const Device device = first_input(request).device;
  check(device.type == DeviceType::cuda, request.caller,
        ": backend 'cuda' reads device memory only, got an array in host memory; move it to the "
        "device");
  const DeviceGuard guard(device.index);
  // Frameworks hand out streams as integers.
  const auto stream =
      reinterpret_cast<cudaStream_t>(data.stream);  // NOLINT(performance-no-int-to-ptr)
  const bool apart = pass == Pass::forward || pass == Pass::backward;
  LossShape shape = shape_of(request, result);
  if (apart) shape.gradient = shape.apart = true;
  const WorkspacePlan plan = cuda::plan_workspace(shape, options);
  const StreamMemory scratch(plan.scratch_bytes(), device.index, stream);
  const StreamMemory kept(apart ? 0 : plan.saved_bytes(), device.index, stream);
  const Workspace workspace{.scratch = scratch.span(), .saved = apart ? data.saved : kept.span()};
  switch (pass) {
    case Pass::both:
      return cuda::loss(request, result, options, workspace, stream);
    case Pass::forward:
      return cuda::forward(request, result, options, workspace, stream);
    case Pass::backward:
      return cuda::backward(request, result, options, workspace, stream);
    case Pass::scores_backward:
      return cuda::scores_backward(request, data.weights_gradient, result, options, workspace,
                                   stream);
  }
}

constexpr CudaBackend kBackend{cuda::plan_workspace, run};

}  // namespace
}  // namespace transducer::python

PYBIND11_MODULE(_cuda, module) {
  module.attr("backend") = py::capsule(&transducer::python::kBackend, "backend");
  module.attr("architectures") = TX_GPU_ARCHITECTURES;
}
