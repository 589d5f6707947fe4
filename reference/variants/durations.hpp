// SPDX-License-Identifier: Apache-2.0
//
// Duration lists, as multi-blank and TDT take them: checked, and put in arc order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "reference/core/error.hpp"

namespace transducer {

/// Indices of `durations` in ascending order of duration; equal ones keep their order in the list.
inline std::vector<int> ascending_order(const std::vector<std::int64_t>& durations) {
  std::vector<int> order(durations.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return durations[a] < durations[b]; });
  return order;
}

/// Throws InvalidArgument unless the list has 1 to `most` durations, each from `least` to 2^20.
inline void check_durations(const char* variant, const std::vector<std::int64_t>& durations,
                            std::int64_t least, std::size_t most) {
  constexpr std::int64_t kLongest = std::int64_t{1} << 20;
  check(!durations.empty() && durations.size() <= most, variant, ": durations has ",
        durations.size(), " entries, expected 1 to ", most,
        " because a variant has room for 32 arcs");
  for (std::int64_t duration : durations) {
    check(duration >= least && duration <= kLongest, variant, ": durations contains ", duration,
          ", expected values from ", least, " to ", kLongest, " frames");
  }
}

}  // namespace transducer
