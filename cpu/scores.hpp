// SPDX-License-Identifier: Apache-2.0
//
// Stage 1, scores: arc weights from logits, a block of nodes at a time: one pass over the rows for the
// log-sums, a look at the taps, then loops over the nodes. Nothing inside a loop over columns or nodes
// reads the arc list.
#pragma once

#include "cpu/utterance.hpp"

namespace transducer::cpu {

/// What the logits say of some nodes, each array over the nodes: the taps, and per group the running max
/// and sum of e^(x - max). Large, and filled only as far as the plan reaches.
struct NodeBlock {
  double tap[kMaxTaps][kBlockNodes];
  double max[kMaxGroups][kBlockNodes];
  double sum[kMaxGroups][kBlockNodes];
};

/// Forgets `count` nodes.
void clear_nodes(const Call& call, std::int64_t count, NodeBlock& block);

/// Rows of logits in the arithmetic type: row r is x + r stride and holds columns [first, first + count) of
/// the node that is `node` + r in a block and u + r in its frame.
template <class Real>
struct LogitRows {
  const Real* x;
  std::int64_t stride;
  std::int64_t rows;
  std::int64_t first;
  std::int64_t count;
  std::int64_t node;
  std::int64_t u;
};

/// Takes rows into a block. Columns may come in several parts.
template <class Real>
void observe_rows(const Call& call, const Utterance& utterance, const LogitRows<Real>& rows,
                  NodeBlock& block);

/// Fills weights and log-sums of nodes (t, u .. u + count) from a block's, from `node` on. Sets saw_poison.
void finish_nodes(const Call& call, const NodeBlock& block, std::int64_t node, std::int64_t count,
                  std::int64_t t, std::int64_t u, Utterance& utterance,
                  std::atomic<bool>& saw_poison);

/// All frames of the given utterances, dense logits of any strides or arc weights.
void dense_scores(const Call& call, std::span<Utterance> utterances, double* row_buffers);
void copy_arc_weights(const Call& call, std::span<Utterance> utterances);

}  // namespace transducer::cpu
