// SPDX-License-Identifier: Apache-2.0
//
// The one way a failed CUDA call becomes an exception: DeviceError with the call's name and the runtime's
// message, and a hint where the cause is a usual one. Launches are checked right after they are made; what
// goes wrong inside a kernel shows up at a later call.
#pragma once

#include <string_view>

#include <cuda_runtime_api.h>

#include "reference/core/error.hpp"

namespace transducer::cuda {

inline void check_cuda(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // a launch error is not left for the next call to find
  std::string_view hint;
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    hint =
        "; this build has no code for the device's architecture, add it to the build option "
        "gpu_arch";
  }
  throw DeviceError(concat("cuda: ", what, " failed: ", cudaGetErrorName(status), " (",
                           cudaGetErrorString(status), ")", hint));
}

/// Throws if the launch named `kernel` did not start.
inline void check_launch(std::string_view kernel) { check_cuda(cudaGetLastError(), kernel); }

}  // namespace transducer::cuda
