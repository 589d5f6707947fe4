// SPDX-License-Identifier: Apache-2.0
#include "distributed/shard.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>

#include "reference/core/error.hpp"

namespace transducer::distributed {

std::int64_t lattice_rows(std::int64_t frames, std::int64_t labels) {
  return frames * (labels + 1);
}

std::vector<int> shard(std::span<const std::int64_t> costs, int ranks,
                       std::span<const std::int64_t> loads) {
  check(ranks >= 1, "distributed::shard: ranks is ", ranks, ", expected 1 or more");
  check(loads.empty() || loads.size() == static_cast<std::size_t>(ranks),
        "distributed::shard: loads has ", loads.size(), " elements, expected ", ranks,
        " because there is one for each rank");
  for (std::size_t i = 0; i < costs.size(); ++i) {
    check(costs[i] >= 0, "distributed::shard: the cost of item ", i, " is ", costs[i],
          ", expected 0 or more");
  }
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });

  using Load = std::tuple<std::int64_t, std::int64_t, int>;  // cost, items, rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> queue;
  for (int rank = 0; rank < ranks; ++rank) {
    queue.emplace(loads.empty() ? 0 : loads[static_cast<std::size_t>(rank)], 0, rank);
  }
  std::vector<int> owners(costs.size());
  for (const std::size_t item : order) {
    const auto [cost, items, rank] = queue.top();
    queue.pop();
    owners[item] = rank;
    queue.emplace(cost + costs[item], items + 1, rank);
  }
  return owners;
}

double imbalance(std::span<const std::int64_t> costs, std::span<const int> owners, int ranks) {
  std::vector<std::int64_t> loads(static_cast<std::size_t>(ranks), 0);
  for (std::size_t i = 0; i < costs.size(); ++i) {
    loads[static_cast<std::size_t>(owners[i])] += costs[i];
  }
  const std::int64_t sum = std::accumulate(loads.begin(), loads.end(), std::int64_t{0});
  if (sum == 0) return 1.0;
  const std::int64_t largest = *std::max_element(loads.begin(), loads.end());
  return static_cast<double>(largest) * ranks / static_cast<double>(sum);
}

}  // namespace transducer::distributed
