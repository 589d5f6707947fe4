// SPDX-License-Identifier: Apache-2.0
//
// Stage 3, gradient: from the posteriors of a node to the gradient of its row of logits,
//
//   d cost / d x_k = sum over groups  coefficient_g softmax_g(x)_k  +  corrections at the taps
//
// clamped, then scaled. Rows below the skip threshold are zeros.
#pragma once

#include <span>

#include "cpu/utterance.hpp"

namespace transducer::cpu {

/// What flows from some nodes into their rows, each array over the nodes of a block. Large, and filled only
/// as far as the plan reaches.
struct NodeFlow {
  double coefficient[kMaxGroups][kBlockNodes];  ///< of each group's softmax (sigmoid for Bernoulli)
  double tap[kMaxTaps][kBlockNodes];            ///< added at each tap's column
  bool empty[kBlockNodes];                      ///< nothing flows into a logit: the row is 0
};

/// Collects the flow of nodes (t, u .. u + count) from their posteriors, into a block's nodes from `node` on;
/// nothing flows from nodes that are left out. The utterance is not poisoned.
void gather_flow(const Call& call, const Utterance& utterance, std::int64_t t, std::int64_t u,
                 std::int64_t count, std::int64_t node, NodeFlow& flow);

/// A node: in a block, and in its utterance.
struct NodePlace {
  std::int64_t node;
  std::int64_t t;
  std::int64_t u;
};

/// Columns [first, first + count) of a row of logits. The row at `next`, if any, is fetched meanwhile.
template <class Real>
struct RowPart {
  const Real* x;
  std::int64_t first;
  std::int64_t count;
  const Real* next = nullptr;
};

/// Finished gradient of the columns of `row`.
template <class Real>
void fill_row(const Call& call, const Utterance& utterance, const NodeFlow& flow,
              const NodePlace& place, const RowPart<Real>& row, Real* gradient);

/// Gradient of dense logits for all utterances, padding included.
void dense_gradient(const Call& call, std::span<Utterance> utterances, double* row_buffers);

/// Gradients of arc weights, arc scores, start and final scores; lattice taps; skipped mass.
void write_lattice_outputs(const Call& call, std::span<Utterance> utterances);
/// Before the posteriors take the place of the weights.
void write_arc_weights(const Call& call, std::span<Utterance> utterances);

}  // namespace transducer::cpu
