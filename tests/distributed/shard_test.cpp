// SPDX-License-Identifier: Apache-2.0
#include "distributed/shard.hpp"

#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/messages.hpp"

namespace transducer::distributed {
namespace {

using Costs = std::vector<std::int64_t>;

TEST(Shard, IsLongestFirstOntoTheLeastLoaded) {
  // 7 and 6 make loads 7, 6; 5 goes to rank 1 (11), 4 to rank 0 (11); 3 finds equal loads and items: rank 0.
  EXPECT_EQ(shard(Costs{3, 7, 5, 6, 4}, 2), (std::vector<int>{0, 0, 1, 1, 0}));
}

TEST(Shard, SpreadsItemsWithoutCost) {
  EXPECT_EQ(shard(Costs{0, 0, 0, 0}, 2), (std::vector<int>{0, 1, 0, 1}));
}

TEST(Shard, LeavesRanksEmptyWhereThereAreFewerItems) {
  EXPECT_EQ(shard(Costs{1, 2}, 4), (std::vector<int>{1, 0}));
  EXPECT_TRUE(shard(Costs{}, 3).empty());
}

TEST(Shard, EqualCostsGoInOrder) {
  EXPECT_EQ(shard(Costs(6, 5), 3), (std::vector<int>{0, 1, 2, 0, 1, 2}));
}

TEST(Shard, AddsToWhatRanksHaveAlready) {
  EXPECT_EQ(shard(Costs{2, 2}, 2, Costs{5, 0}), (std::vector<int>{1, 1}));
}

TEST(Shard, RefusesWhatMakesNoSense) {
  EXPECT_TRUE(testing::throws([] { shard(Costs{1, -2}, 2); }, "the cost of item 1 is -2"));
  EXPECT_TRUE(testing::throws([] { shard(Costs{1}, 0); }, "ranks is 0, expected 1 or more"));
  EXPECT_TRUE(
      testing::throws([] { shard(Costs{1}, 2, Costs{1}); }, "loads has 1 elements, expected 2"));
}

TEST(Shard, ImbalanceIsLargestOverMean) {
  EXPECT_DOUBLE_EQ(imbalance(Costs{3, 1}, std::vector<int>{0, 1}, 2), 1.5);
  EXPECT_DOUBLE_EQ(imbalance(Costs{3, 1}, std::vector<int>{0, 1}, 4), 3.0);
  EXPECT_DOUBLE_EQ(imbalance(Costs{}, std::vector<int>{}, 4), 1.0);
}

TEST(Shard, IsWithinGrahamsBound) {
  // The mean load and the largest item are lower bounds of the best largest load.
  for (int ranks = 1; ranks <= 9; ++ranks) {
    Costs costs;
    for (std::int64_t i = 0; i < 40; ++i) costs.push_back(1 + (i * i * 7919) % 101);
    const std::vector<int> owners = shard(costs, ranks);
    const std::int64_t sum = std::accumulate(costs.begin(), costs.end(), std::int64_t{0});
    const double best = static_cast<double>(sum) / ranks;
    const double most = imbalance(costs, owners, ranks) * best;
    EXPECT_LE(most, (4.0 / 3.0 - 1.0 / (3.0 * ranks)) * std::max(best, 101.0)) << ranks;
  }
}

/// `frames,labels` lines under a header.
Costs librispeech_rows() {
  std::ifstream file(std::string(TX_TEST_DATA) + "/librispeech_lengths.csv");
  std::string line;
  Costs rows;
  while (std::getline(file, line)) {
    const std::size_t comma = line.find(',');
    if (line.empty() || line[0] < '0' || line[0] > '9' || comma == std::string::npos) continue;
    rows.push_back(lattice_rows(std::stoll(line), std::stoll(line.substr(comma + 1))));
  }
  return rows;
}

TEST(Shard, BalancesRealLengths) {
  const Costs rows = librispeech_rows();
  ASSERT_GT(rows.size(), 150U);
  for (const int ranks : {2, 3, 4, 7, 8}) {
    EXPECT_LE(imbalance(rows, shard(rows, ranks), ranks), 1.01) << ranks;
  }
}

}  // namespace
}  // namespace transducer::distributed
