// SPDX-License-Identifier: Apache-2.0
//
// Which arcs exist, whatever the logits hold: lengths, band, may_finish, the next label, masks. The rules are
// those of docs/math.md.
#pragma once

#include "cuda/call_view.hpp"
#include "cuda/device/tensor.cuh"

namespace transducer::cuda {

__device__ __forceinline__ bool is_poison(double x) { return !(x < INFINITY); }  // NaN or +inf

/// Whether arc a may leave (t, u), arc scores aside. `label_arcs`: arcs_for_label() of the node.
__device__ inline bool arc_fits(const CallView& call, std::uint32_t label_arcs, int a,
                                std::int64_t b, int t, int u, int frames, int labels) {
  const PlannedArc& arc = call.plan.arcs[a];
  const int to_t = t + arc.dt;
  const int to_u = u + arc.du;
  if ((label_arcs >> a & 1u) == 0 || to_t > frames || to_u > labels) return false;
  if (to_t == frames && !arc.may_finish) return false;
  return call.is_allowed(b, t, u, frames) && call.is_allowed(b, to_t, to_u, frames);
}

/// The same with masks: an arc score, or a given arc weight, of -inf removes the arc.
template <class Real>
__device__ inline bool arc_exists(const CallView& call, std::uint32_t label_arcs, int a,
                                  std::int64_t b, int t, int u, int frames, int labels,
                                  const TensorRef& arc_scores, const Real* arcs) {
  if (!arc_fits(call, label_arcs, a, b, t, u, frames, labels)) return false;
  if (call.from_arc_weights) {
    return arcs[a * call.plane + call.node(b, t, u)] != Real(-INFINITY);
  }
  return arc_scores.rank < 0 ||
         load_real(arc_scores, tensor_offset(arc_scores, b, t, u, a)) != -INFINITY;
}

}  // namespace transducer::cuda
