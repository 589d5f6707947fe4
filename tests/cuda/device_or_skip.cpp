// SPDX-License-Identifier: Apache-2.0
//
// Linked into every CUDA test program: without a device it ends before the first test, as skipped (exit status
// 77), or as failed where TX_REQUIRE_CUDA=1 says that a device must be there.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda_runtime_api.h>

namespace {

struct DeviceOrSkip {
  DeviceOrSkip() {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status == cudaSuccess && devices > 0) return;
    const char* required = std::getenv("TX_REQUIRE_CUDA");
    const bool must = required != nullptr && std::strcmp(required, "0") != 0;
    std::printf("no CUDA device: %s\n",
                status == cudaSuccess ? "none found" : cudaGetErrorString(status));
    std::fflush(stdout);
    std::_Exit(must ? 1 : 77);
  }
};

const DeviceOrSkip kDeviceOrSkip;

}  // namespace
