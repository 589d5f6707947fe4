// SPDX-License-Identifier: Apache-2.0
//
// Which columns of a row belong to a group, for runs of columns at a time: a range less at most one fixed
// column and the next label.
#pragma once

#include <cstdint>

#include "cuda/call_view.hpp"

namespace transducer::cuda {

enum class Coverage { none, some, all };

/// How much of columns [k, k + count) a group holds at a node whose next label is `label`.
__device__ __forceinline__ Coverage coverage(const Group& group, std::int64_t label, std::int64_t k,
                                             int count) {
  const std::int64_t begin = group.begin.offset;
  const std::int64_t end = group.end.offset;
  if (k >= end || k + count <= begin) return Coverage::none;
  const auto within = [&](std::int64_t hole) { return hole >= k && hole < k + count; };
  const bool holes = (group.exclude_fixed && within(group.excluded.offset)) ||
                     (group.exclude_label && within(label));
  return k >= begin && k + count <= end && !holes ? Coverage::all : Coverage::some;
}

/// Whether the gradient of column k is clamped: not where a group with clamp = false covers it.
__device__ __forceinline__ bool column_is_clamped(const TapPlan& plan, std::int64_t k) {
  for (int g = 0; plan.unclamped_groups >> g != 0; ++g) {
    const Group& group = plan.groups[g];
    if ((plan.unclamped_groups >> g & 1) != 0 && group.begin.offset <= k && k < group.end.offset) {
      return false;
    }
  }
  return true;
}

/// Whether one softmax over all columns is all there is: most variants; their rows need no tests.
inline bool one_whole_group(const CallView& call) {
  const Group& group = call.plan.groups[0];
  return call.plan.num_groups == 1 && call.plan.read_groups == 1 &&
         group.normaliser == Normaliser::softmax && group.begin.offset == 0 &&
         group.end.offset == call.columns && !group.exclude_fixed && !group.exclude_label &&
         group.clamp;
}

/// Whether eight lanes a row serve better than a warp; a lane then holds two taps.
inline bool rows_are_short(const CallView& call) {
  return call.columns <= 256 && call.plan.num_taps <= 16;
}

}  // namespace transducer::cuda
