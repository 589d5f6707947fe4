// SPDX-License-Identifier: Apache-2.0
//
// The CUDA layer's entries: the reference's results, on a device. All arrays of the request and the result,
// lengths and labels included, lie on one device, which is current; so does the workspace. Nothing is
// allocated, nothing waits for the device, no launch or size depends on lengths: the calls can be captured in
// a CUDA graph, and streams do not meet.
//
//   forward    costs, total, lattice outputs; leaves in `saved` what backward needs
//   backward   gradients; reads `saved`, changes nothing in it, so it may run twice
//   loss       both
//
// float64 is computed in double; float32, bfloat16 and float16 in float32 with a lattice of float32 mantissas
// and int32 exponents, and double costs. Skipping is certified as in the CPU layer: nodes whose summed
// occupancy stays below `skip_mass` times the expected number of arcs of a path get a zero gradient; default
// 1e-7 for float32, 1e-5 for the 16-bit types, 0 for float64.
#pragma once

#include "reference/core/request.hpp"
#include "reference/core/workspace.hpp"

struct CUstream_st;

namespace transducer::cuda {

using Stream = CUstream_st*;

/// The device memory the entries need for this shape; no device is asked.
WorkspacePlan plan_workspace(const LossShape& shape, const Options& options);

/// Throws InvalidArgument for a request that is not legal or a workspace that is too small, Unsupported,
/// NotBuilt if the layer is not part of the build, and DeviceError.
void forward(const LossRequest& request, const LossResult& result, const Options& options,
             const Workspace& workspace, Stream stream);
void backward(const LossRequest& request, const LossResult& result, const Options& options,
              const Workspace& workspace, Stream stream);
void loss(const LossRequest& request, const LossResult& result, const Options& options,
          const Workspace& workspace, Stream stream);

/// The derivative of the scores stage alone: `weights_gradient` [B, T, U+1, A] comes in with respect to the
/// complete arc weights; gradients of the source and of arc_scores that `result` names go out. Gradient scales
/// (FastEmit) apply, clamping, reductions and skipping do not. Memory as of `loss`.
void scores_backward(const LossRequest& request, const TensorRef& weights_gradient,
                     const LossResult& result, const Options& options, const Workspace& workspace,
                     Stream stream);

}  // namespace transducer::cuda
