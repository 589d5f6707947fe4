// SPDX-License-Identifier: Apache-2.0
//
// Stage 3, gradient: from what flows back into the arcs of a node to the gradient of its logits
// (docs/math.md#gradient). With q(arc) the derivative of the cost with respect to w(arc), -gamma:
//
//   d cost / d x_k = sum over arcs, over their columns:  q s d(column)/d x_k
//
// where s is the column's gradient scale and column = x - sum of Z subtracted + sum of Z added;
// dZ/dx is the group's softmax (or sigmoid). Clamping acts on each d cost / d x_k before the
// upstream factor. Work: K G per node with any flow.
#pragma once

#include <span>

#include "reference/core/request.hpp"
#include "reference/core/validate.hpp"
#include "reference/source.hpp"
#include "reference/utterance.hpp"

namespace transducer::reference {

/// Adds to `logits_gradient` [K] the derivative of sum over arcs of flow[a] * w(a) at a node with
/// these logits and log-sums, gradient scales applied.
void add_node_gradient(const VariantTable& table, std::span<const double> flow,
                       std::span<const double> logits, std::span<const double> log_sums,
                       std::int64_t label, bool from_log_probs, std::span<double> logits_gradient);

/// Where the derivative of sum over arcs of flow * w comes from and how it is shaped on the way
/// out.
struct Backward {
  View<const double, 3> flow;  // [T, U+1, A] 0 where nothing flows
  double clamp = 0.0;          ///< 0: off
  double scale = 1.0;          ///< applied after the clamp
  bool poisoned = false;       ///< every gradient of a valid node is NaN
};

/// Sums over the batch that the gradient stage keeps in double until they are complete.
struct GradientSums {
  JointGradientSums joint;
  std::span<double> arc_scores;       // the elements of arc_scores, in row-major order
  std::span<double> logits_gradient;  // [K] of one node
  bool shared_poisoned = false;       ///< some utterance made W and c NaN
};

/// Writes the gradients of one utterance that `result` names, padding included; adds to the shared
/// ones.
void gradient(const LossRequest& request, const ValidRequest& valid, const LossResult& result,
              const Options& options, const Backward& backward, NodeReader& reader,
              const Utterance& utterance, GradientSums& sums);

/// Writes the gradients that sum over utterances: W, c and arc_scores.
void write_shared_gradients(const LossResult& result, const GradientSums& sums);

}  // namespace transducer::reference
