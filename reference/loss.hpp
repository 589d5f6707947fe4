// SPDX-License-Identifier: Apache-2.0
//
// The reference layer's entry: scores, lattice and gradient in order, one utterance at a time, in
// double precision (docs/math.md). Reads float64, float32, bfloat16 and float16; each output is
// rounded once to its own type. Sequential, never skips a node. Work:
// B * T * (U+1) * (K G + A) for dense logits, and K H more per node for joint inputs.
//
// What is computed is what `result` names: costs, gradients, lattice quantities, in any
// combination.
#pragma once

#include "reference/core/request.hpp"
#include "reference/core/workspace.hpp"

namespace transducer::reference {

/// The memory `loss` and `scores_backward` need for this shape.
WorkspacePlan plan_workspace(const LossShape& shape, const Options& options);

/// Costs and whatever else `result` names. Throws InvalidArgument for a request that is not legal,
/// for a workspace that is too small, and Cancelled.
void loss(const LossRequest& request, const LossResult& result, const Options& options,
          const Workspace& workspace);

/// The derivative of the scores stage alone: `weights_gradient` [B, T, U+1, A] comes in with
/// respect to the complete arc weights; gradients of the source and of arc_scores that `result`
/// names go out. Gradient scales (FastEmit) apply, clamping and reductions do not.
void scores_backward(const LossRequest& request, const TensorRef& weights_gradient,
                     const LossResult& result, const Options& options, const Workspace& workspace);

}  // namespace transducer::reference
