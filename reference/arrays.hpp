// SPDX-License-Identifier: Apache-2.0
//
// From a workspace to the arrays of one call: the regions of the plan, shaped for one utterance.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "reference/core/error.hpp"
#include "reference/core/request.hpp"
#include "reference/core/validate.hpp"
#include "reference/core/workspace.hpp"
#include "reference/gradient.hpp"
#include "reference/source.hpp"
#include "reference/utterance.hpp"

namespace transducer::reference {

/// Hands out the regions of one call.
struct Arrays {
  const ValidRequest& valid;
  const WorkspacePlan& plan;
  const Workspace& workspace;

  template <class T>
  std::span<T> region(std::string_view name) const {
    return take_region<T>(plan, workspace, name);
  }

  /// The reader of nodes, with W and c widened.
  NodeReader reader(const LossRequest& request) const {
    NodeReader reader{.request = &request, .logits = region<double>("logits")};
    if (valid.shape.hidden > 0) {
      reader.weight = region<double>("weight");
      reader.bias = region<double>("bias");
      reader.sum = region<double>("joint_sum");
      reader.hidden = region<double>("joint_hidden");
      reader.dropout_factor = region<double>("dropout_factor");
    }
    load_output_layer(reader);
    return reader;
  }

  /// Utterance b, its lengths and labels read, its arrays shaped but not filled.
  Utterance utterance(const LossRequest& request, std::int64_t b) const {
    Utterance utterance{.batch_index = b,
                        .frames = read_index(request.frame_lengths, {b}),
                        .labels = read_index(request.target_lengths, {b})};
    const std::int64_t frames = utterance.frames;
    const std::int64_t rows = utterance.labels + 1;
    const std::span<std::int64_t> targets = region<std::int64_t>("targets");
    for (std::int64_t u = 0; !valid.from_arc_weights && u < utterance.labels; ++u) {
      targets[static_cast<std::size_t>(u)] = read_index(request.targets, {b, u});
    }
    utterance.targets = targets.first(static_cast<std::size_t>(utterance.labels));
    const auto ends = static_cast<std::size_t>(frames + 1);
    utterance.start_scores = region<double>("start_scores").first(ends);
    utterance.final_scores = region<double>("final_scores").first(ends);
    const auto per_node = [&](std::string_view name, int last) {
      return row_major_view(region<double>(name).data(), frames, rows, last);
    };
    utterance.arc_weights = per_node("arc_weights", valid.shape.arcs);
    utterance.group_log_sums = per_node("group_log_sums", valid.shape.groups);
    utterance.arc_posterior = per_node("arc_posterior", valid.shape.arcs);
    utterance.arc_exists = row_major_view(region<std::uint32_t>("arc_exists").data(), frames, rows);
    utterance.reachable =
        row_major_view(region<std::uint8_t>("reachable").data(), frames + 1, rows);
    utterance.alpha = row_major_view(region<double>("alpha").data(), frames + 1, rows);
    utterance.beta = row_major_view(region<double>("beta").data(), frames + 1, rows);
    return utterance;
  }

  /// What flows back into the arcs of one utterance.
  View<double, 3> arc_flow(const Utterance& utterance) const {
    return row_major_view(region<double>("arc_flow").data(), utterance.frames, utterance.labels + 1,
                          valid.shape.arcs);
  }

  /// Sums of shared gradients, set to 0. Empty spans if no gradient was planned.
  GradientSums gradient_sums() const {
    GradientSums sums;
    if (!valid.shape.gradient) return sums;
    sums.logits_gradient = region<double>("logits_gradient");
    sums.arc_scores = region<double>("arc_scores_gradient");
    if (valid.shape.hidden > 0) {
      sums.joint = {.encoder = region<double>("encoder_gradient"),
                    .predictor = region<double>("predictor_gradient"),
                    .weight = region<double>("weight_gradient"),
                    .bias = region<double>("bias_gradient")};
    }
    for (std::span<double> sum : {sums.arc_scores, sums.joint.weight, sums.joint.bias}) {
      std::fill(sum.begin(), sum.end(), 0.0);
    }
    return sums;
  }
};

}  // namespace transducer::reference
