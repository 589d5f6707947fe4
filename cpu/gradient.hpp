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

/// What a row needs besides its logits. Filled in place and only as far as the plan reaches: it is large,
/// and copying or clearing it would cost as much as a short row.
struct RowGradient {
  double coefficient[kMaxGroups];  ///< of each group's softmax (sigmoid for Bernoulli)
  double tap[kMaxTaps];            ///< added at each tap's column
  double log_sum[kMaxGroups];
  bool empty = true;      ///< nothing flows into a logit: the row is 0
  bool poisoned = false;  ///< the row is NaN
};

/// Collects the flow of node (t, u) from its posteriors; `empty` for nodes that are left out.
void row_gradient(const Call& call, const Utterance& utterance, std::int64_t t, std::int64_t u,
                  RowGradient& row);

/// Finished gradient of columns [first, first + count), from logits `x` of those columns.
template <class Real>
void fill_row(const Call& call, const Utterance& utterance, const RowGradient& row, std::int64_t u,
              const Real* x, std::int64_t first, std::int64_t count, Real* gradient);

/// Gradient of dense logits for all utterances, padding included.
void dense_gradient(const Call& call, std::span<Utterance> utterances, double* row_buffers);

/// Gradients of arc weights, arc scores, start and final scores; lattice taps; skipped mass.
void write_lattice_outputs(const Call& call, std::span<Utterance> utterances);
/// Before the posteriors take the place of the weights.
void write_arc_weights(const Call& call, std::span<Utterance> utterances);

}  // namespace transducer::cpu
