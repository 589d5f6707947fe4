// SPDX-License-Identifier: Apache-2.0
//
// Stage 1, scores: arc weights of a row of logits, from one pass for the log-sums and a look at the taps.
#pragma once

#include "cpu/utterance.hpp"

namespace transducer::cpu {

/// Running log-sums of one node's groups: columns may come in blocks.
struct GroupSums {
  double max[kMaxGroups];
  double sum[kMaxGroups];
};

GroupSums empty_sums();

/// Takes columns [first, first + count) of a row, `x` pointing at column `first`, into the sums.
template <class Real>
void observe_columns(const Call& call, std::int64_t label, const Real* x, std::int64_t first,
                     std::int64_t count, GroupSums& sums);

/// Fills weights and log-sums of node (t, u) from its taps and sums. Sets saw_poison.
void finish_node(const Call& call, const double* taps, const GroupSums& sums, std::int64_t t,
                 std::int64_t u, Utterance& utterance, std::atomic<bool>& saw_poison);

/// All frames of the given utterances, dense logits of any strides or arc weights.
void dense_scores(const Call& call, std::span<Utterance> utterances, double* row_buffers);
void copy_arc_weights(const Call& call, std::span<Utterance> utterances);

}  // namespace transducer::cpu
