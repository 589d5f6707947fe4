// SPDX-License-Identifier: Apache-2.0
//
// The same over MPI; run under mpirun with any number of ranks.
#include <atomic>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "distributed/mpi_communicator.hpp"
#include "tests/support/messages.hpp"
#include "tests/support/sharded_cases.hpp"

namespace transducer::testing {
namespace {

using distributed::Gathered;
using distributed::MpiCommunicator;

TEST(Mpi, SumsAndMaximaAreThoseOfAllRanks) {
  MpiCommunicator communicator;
  const int n = communicator.size();
  std::vector<double> reals(1000);
  std::vector<std::int64_t> integers(1000);
  std::vector<std::int32_t> largest(1000);
  for (std::size_t i = 0; i < reals.size(); ++i) {
    const auto value = static_cast<std::int64_t>(i) * (communicator.rank() + 1);
    reals[i] = static_cast<double>(value);
    integers[i] = value << 30;
    largest[i] = static_cast<std::int32_t>(value);
  }
  communicator.sum(reals);
  communicator.sum(integers);
  communicator.maximum(largest);
  for (std::size_t i = 0; i < reals.size(); ++i) {
    const auto base = static_cast<std::int64_t>(i);
    ASSERT_EQ(reals[i], static_cast<double>(base * n * (n + 1) / 2));
    ASSERT_EQ(integers[i], (base * n * (n + 1) / 2) << 30);
    ASSERT_EQ(largest[i], base * n);
  }
}

TEST(Mpi, GathersPartsOfDifferentSizes) {
  MpiCommunicator communicator;
  const std::string mine(static_cast<std::size_t>(communicator.rank() * 3), 'a');
  const Gathered all = communicator.gather(std::as_bytes(std::span(mine)));
  for (int rank = 0; rank < communicator.size(); ++rank) {
    EXPECT_EQ(all.of(rank).size(), static_cast<std::size_t>(rank * 3));
  }
}

TEST(Mpi, CountsBytes) {
  MpiCommunicator communicator;
  std::vector<double> values(10);
  communicator.sum(values);
  EXPECT_EQ(communicator.bytes(), communicator.size() == 1 ? 0 : 80);
}

TEST(Mpi, KnowsTheRanksOfItsNode) {
  const MpiCommunicator communicator;
  EXPECT_EQ(communicator.on_node().size, communicator.size());  // the tests run on one node
  EXPECT_EQ(communicator.on_node().rank, communicator.rank());
}

TEST(Mpi, ShardedEqualsUnsharded) {
  MpiCommunicator communicator;
  expect_parts_equal_whole(communicator);
}

TEST(Mpi, AWaitEndsWhenItIsCancelled) {
  // Rank 0 waits for a sum that the others never join.
  std::atomic<int> polls = 0;
  MpiCommunicator communicator(
      [](void* context) { return ++*static_cast<std::atomic<int>*>(context) > 3; }, &polls);
  if (communicator.size() == 1) GTEST_SKIP() << "one rank never waits";
  std::vector<double> values(1);
  if (communicator.rank() != 0) return;
  EXPECT_TRUE(throws<Cancelled>([&] { communicator.sum(values); },
                                "cancelled while waiting for MPI_Iallreduce"));
}

}  // namespace
}  // namespace transducer::testing

int main(int argc, char** argv) {
  const transducer::distributed::MpiSession session;
  ::testing::InitGoogleTest(&argc, argv);
  transducer::distributed::MpiCommunicator world;
  // One XML file: that of rank 0, which learns below whether another rank failed.
  if (world.rank() != 0) ::testing::GTEST_FLAG(output) = "";
  std::int64_t failures = RUN_ALL_TESTS();
  world.sum(std::span(&failures, 1));
  return failures == 0 ? 0 : 1;
}
