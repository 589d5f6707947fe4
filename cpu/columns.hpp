// SPDX-License-Identifier: Apache-2.0
//
// The columns of a group as runs: a range minus at most two holes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "reference/core/variant_table.hpp"

namespace transducer::cpu {

/// Calls visit(begin, end) for the runs of a group's columns inside [first, first + count).
template <class Visit>
void for_each_run(const Group& group, std::int64_t label, std::int64_t first, std::int64_t count,
                  Visit&& visit) {
  std::int64_t holes[2] = {group.exclude_fixed ? group.excluded.offset : -1,
                           group.exclude_label ? label : -1};
  if (holes[0] > holes[1]) std::swap(holes[0], holes[1]);
  std::int64_t begin = std::max(group.begin.offset, first);
  const std::int64_t end = std::min(group.end.offset, first + count);
  for (std::int64_t hole : holes) {
    if (hole < begin || hole >= end) continue;
    if (begin < hole) visit(begin, hole);
    begin = hole + 1;
  }
  if (begin < end) visit(begin, end);
}

}  // namespace transducer::cpu
