// SPDX-License-Identifier: Apache-2.0
//
// A DenseBatch on the CPU layer, with a workspace of exactly the planned size that holds NaN.
#pragma once

#include <algorithm>

#include "cpu/loss.hpp"
#include "tests/support/layer_outcome.hpp"

namespace transducer::testing {

using CpuRun = LayerRun;
using CpuOutcome = LayerOutcome;

/// Runs a request on the CPU layer with a workspace of the planned bytes, every byte 0xff.
inline void run_cpu(const LossRequest& request, const LossResult& result,
                    const Options& options = {.threads = 2}) {
  ScratchBuffer scratch(cpu::plan_workspace(shape_of(request, result), options));
  Workspace workspace = scratch.workspace();
  std::fill(workspace.scratch.begin(), workspace.scratch.end(), std::byte{0xff});
  cpu::loss(request, result, options, workspace);
}

inline CpuOutcome run_cpu(DenseBatch& batch, const CpuRun& run = {}) {
  return run_layer(batch, run, [](const auto& request, const auto& result, const auto& options) {
    run_cpu(request, result, options);
  });
}

}  // namespace transducer::testing
