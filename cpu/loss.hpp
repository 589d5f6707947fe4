// SPDX-License-Identifier: Apache-2.0
//
// The CPU layer's entry: the reference's results, in several threads and with vector instructions.
// float64 inputs are computed in double throughout; float32, bfloat16 and float16 with float32 exponentials
// and products, double lattices and double sums.
//
// Certified skipping: nodes whose summed occupancy stays below `skip_mass` times the expected number of
// arcs of a path get a zero gradient and are not computed again; `skipped_mass` reports what was left out.
// The default is 1e-7 for float32, 1e-5 for the 16-bit types, 0 for float64.
//
// Work: two passes over dense logits (one read; one read of the kept rows and one write), or four products
// of rows x H x K for joint inputs, of which two and the recomputation touch kept rows only.
#pragma once

#include "reference/core/request.hpp"
#include "reference/core/workspace.hpp"

namespace transducer::cpu {

/// The memory `loss` needs for this shape.
WorkspacePlan plan_workspace(const LossShape& shape, const Options& options);

/// Costs and whatever else `result` names. Throws InvalidArgument for a request that is not legal,
/// for a workspace that is too small, and Cancelled.
void loss(const LossRequest& request, const LossResult& result, const Options& options,
          const Workspace& workspace);

/// The two halves of `loss`, for callers that learn `request.upstream` in between; plan with
/// `LossShape::apart`. `forward` writes costs and total, and into `workspace.saved` the arc weights and group
/// log-sums, 8 (A + G) bytes a node. `backward` writes everything else from them, any number of times; it
/// reads the same inputs again and changes nothing that was saved.
void forward(const LossRequest& request, const LossResult& result, const Options& options,
             const Workspace& workspace);
void backward(const LossRequest& request, const LossResult& result, const Options& options,
              const Workspace& workspace);

/// The derivative of the scores stage alone: `weights_gradient` [B, T, U+1, A] comes in with respect to the
/// complete arc weights; gradients of the source and of arc_scores that `result` names go out. Gradient scales
/// (FastEmit) apply, clamping, reductions and skipping do not.
void scores_backward(const LossRequest& request, const TensorRef& weights_gradient,
                     const LossResult& result, const Options& options, const Workspace& workspace);

/// The instruction set in use: "baseline", "avx2" or "avx512".
const char* instruction_set();

}  // namespace transducer::cpu
