// SPDX-License-Identifier: Apache-2.0
//
// CallView: a request as kernels see it. Trivially copyable, passed by value as a kernel parameter; every
// array lies on the device and belongs to the caller or to the workspace. Lengths are data on the device, so
// nothing here decides a launch.
//
// Arrays over nodes are planes of `plane` elements; node (b, t, u) has index
//
//   n = (b T + t)(U + 1) + u          t < T, u <= U: the padded grid
//
//   node_scores  [S, plane]   the logits at the plan's taps (-inf where a column is absent), then the
//                             log-sum of each group in the plan's order (softplus for Bernoulli);
//                             S = num_taps, at least 2, plus num_groups
//   arcs         [A, plane]   arc weights; the posteriors gamma take their place
#pragma once

#include <cstdint>

#include "reference/core/tap_plan.hpp"
#include "reference/core/tensor_ref.hpp"

namespace transducer::cuda {

/// int32 or int64 elements with strides: lengths [B], targets [B, U], band [B, T, 2].
struct IndexView {
  const void* data = nullptr;
  std::int64_t strides[3] = {};
  bool wide = false;  ///< int64

  TX_HD bool defined() const { return data != nullptr; }
  TX_HD std::int64_t operator()(std::int64_t i, std::int64_t j = 0, std::int64_t k = 0) const {
    const std::int64_t offset = i * strides[0] + j * strides[1] + k * strides[2];
    return wide ? static_cast<const std::int64_t*>(data)[offset]
                : static_cast<const std::int32_t*>(data)[offset];
  }
};

/// The view of an index array, or an undefined one.
inline IndexView index_view(const TensorRef& tensor) {
  IndexView view;
  if (!tensor.defined()) return view;
  view.data = tensor.data;
  view.wide = tensor.dtype == DType::int64;
  for (int axis = 0; axis < tensor.rank && axis < 3; ++axis)
    view.strides[axis] = tensor.strides[axis];
  return view;
}

/// What the lattice stage found out about an utterance.
enum UtteranceState : std::int32_t { kFeasible = 0, kInfeasible = 1, kPoisoned = 2 };

struct CallView {
  int batch = 0;                // B
  int frames = 0;               // T
  int labels = 0;               // U
  std::int64_t columns = 0;     // K
  std::int64_t vocabulary = 0;  // V
  std::int64_t hidden = 0;      // H
  std::int64_t plane = 0;       ///< elements of a plane, B (T+1) (U+1) rounded up to even

  IndexView frame_lengths;   // [B]
  IndexView target_lengths;  // [B]
  IndexView targets;         // [B, U]
  IndexView band;            // [B, T, 2], optional
  TapPlan plan;
  double clamp = 0.0;  ///< > 0: logit gradients are clamped at unit scale
  bool from_arc_weights = false;

  TX_HD int rows() const { return labels + 1; }
  TX_HD std::int64_t node(std::int64_t b, std::int64_t t, std::int64_t u) const {
    return (b * frames + t) * rows() + u;
  }
  /// Lengths, clipped to the array so that a wrong one reads no foreign memory; the lattice stage makes the
  /// cost of such an utterance NaN.
  TX_HD int frames_of(std::int64_t b) const { return clipped(frame_lengths(b), frames); }
  TX_HD int labels_of(std::int64_t b) const { return clipped(target_lengths(b), labels); }
  /// Label after node (t, u), -1 at u = U_b; -1 too for one that is no symbol.
  TX_HD std::int64_t label_of(std::int64_t b, int u) const {
    if (from_arc_weights || u >= labels_of(b)) return -1;
    const std::int64_t label = targets(b, u);
    return label >= 0 && label < vocabulary ? label : -1;
  }
  /// Whether the band allows node (t, u); t = T_b has no row and is allowed.
  TX_HD bool is_allowed(std::int64_t b, int t, int u, int frames_b) const {
    return !band.defined() || t >= frames_b || (u >= band(b, t, 0) && u <= band(b, t, 1));
  }
  /// Index of a tap's plane, and of a group's log-sum.
  TX_HD int tap_plane(int tap) const { return tap; }
  TX_HD int group_plane(int group) const { return (plan.num_taps < 2 ? 2 : plan.num_taps) + group; }

 private:
  TX_HD static int clipped(std::int64_t length, int dim) {
    return length < 0 ? 0 : length > dim ? dim : static_cast<int>(length);
  }
};

}  // namespace transducer::cuda
