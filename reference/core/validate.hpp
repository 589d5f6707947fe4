// SPDX-License-Identifier: Apache-2.0
//
// Every rule about shapes, types and ranges, once, with its message. validate() checks a request
// and its result and returns what every layer would otherwise work out for itself: sizes, the bound
// variant, the broadcast arrays. It reads labels and lengths only if Options::validate is set.
#pragma once

#include "reference/core/request.hpp"
#include "reference/core/variant_table.hpp"

namespace transducer {

/// A request that passed: the same arrays, made uniform.
struct ValidRequest {
  LossShape shape;
  VariantTable table;             ///< bound to K columns (as given for arc weights)
  TensorRef arc_scores;           // [B, T, U+1, A], broadcast axes have stride 0
  TensorRef arc_scores_gradient;  // the same
  bool from_arc_weights = false;
};

/// Sizes of a request, for plan_workspace. Throws InvalidArgument if they do not fit together.
LossShape shape_of(const LossRequest& request, const LossResult& result);

/// Throws InvalidArgument (or Unsupported for a type) with one clear message.
ValidRequest validate(const LossRequest& request, const LossResult& result, const Options& options);

}  // namespace transducer
