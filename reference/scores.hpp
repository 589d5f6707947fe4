// SPDX-License-Identifier: Apache-2.0
//
// Stage 1, scores: from the logits of a node to the log-weights of the arcs that leave it
// (docs/math.md#arc-weight):
//
//   w(arc) = sum of columns + sum c_g Z_g + constant + frame_bonus ((T-1)/2 - t) + arc_scores
//
// Which arcs exist is decided here, once, for all later stages (docs/math.md#which-arcs-exist).
// Work: (K G + A) per node.
#pragma once

#include "reference/core/request.hpp"
#include "reference/core/validate.hpp"
#include "reference/source.hpp"
#include "reference/utterance.hpp"

namespace transducer::reference {

/// Log-sum-exp of a group's columns, softplus for a Bernoulli one. NaN if any column is NaN or
/// +inf; -inf if every column is -inf or none is left after the exclusions.
double group_log_sum(const Group& group, std::span<const double> logits, std::int64_t label);

/// Z of a group from its log-sum: 0 for no normaliser and for log-probabilities.
double log_normaliser(const Group& group, double log_sum, bool from_log_probs);

/// Whether a column makes its arc absent at a node whose next label is `label` (-1 at u = U),
/// whatever the logits hold: no next label, a label outside every softmax it subtracts, an empty
/// group.
bool column_is_absent(const VariantTable& table, const Column& column, std::int64_t label,
                      bool from_log_probs);

/// Fills arc_weights, arc_exists and group_log_sums of the utterance.
void scores(const LossRequest& request, const ValidRequest& valid, const Options& options,
            NodeReader& reader, Utterance& utterance);

}  // namespace transducer::reference
