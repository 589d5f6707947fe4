// SPDX-License-Identifier: Apache-2.0
//
// One batch that lies on several ranks: each rank hands over the utterances that it owns, any number of
// them, 0 included, and gets what one rank with the whole batch would get.
//
//   costs, gradients of logits, encoder, predictor, ...   of its own utterances, bit for bit
//   total                     float64 sum of all costs in the order of the utterance numbers, bit for bit
//   weight and bias gradient  summed over all ranks, on every rank
//
// N products g h are summed for an element of dW, in one order on one rank and in another on several: both
// are within N u sum |g h| of the exact sum (u the unit roundoff of the local arithmetic), so they differ by at
// most 2 N u sum |g h|. With `reproducible`, each utterance's part is added exactly (reproducible_sum.hpp) and dW
// has the same bits for every number of ranks and every assignment; it costs one pass over W per utterance
// and 28 bytes per element.
//
// On the wire per call and rank: 24 bytes and 8 per utterance for the denominators and the order, 8 per
// utterance for the costs, 8 (reproducible: 28) per element of dW and dc.
#pragma once

#include <cstdint>
#include <span>

#include "distributed/communicator.hpp"
#include "reference/core/request.hpp"
#include "reference/core/workspace.hpp"

namespace transducer::distributed {

/// The layer that each rank computes with: `{cpu::plan_workspace, cpu::loss}`.
struct Layer {
  WorkspacePlan (*plan_workspace)(const LossShape&, const Options&);
  void (*loss)(const LossRequest&, const LossResult&, const Options&, const Workspace&);
};

struct Placement {
  /// The number of each local utterance, distinct over all ranks: the order of the total, and the default of
  /// the dropout ids. Empty: numbered through in the order of the ranks.
  std::span<const std::int64_t> utterances;  // [B]
  bool reproducible = false;
};

/// The memory `loss` needs on this rank.
WorkspacePlan plan_workspace(const Layer& layer, const LossShape& shape, const Options& options,
                             const Placement& placement);

/// Collective: all ranks call it with the same variant, options and kind of outputs. If any rank's part is not
/// legal, every rank throws the same message, which names that rank.
void loss(const Layer& layer, const LossRequest& request, const LossResult& result,
          const Options& options, const Workspace& workspace, const Placement& placement,
          Communicator& communicator);

}  // namespace transducer::distributed
