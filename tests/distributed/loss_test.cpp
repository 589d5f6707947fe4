// SPDX-License-Identifier: Apache-2.0
//
// A loss over ranks that are threads: no MPI needed.
#include "distributed/loss.hpp"

#include <gtest/gtest.h>

#include "tests/support/messages.hpp"
#include "tests/support/sharded_cases.hpp"
#include "tests/support/thread_ranks.hpp"

namespace transducer::testing {
namespace {

using distributed::Communicator;
using distributed::SingleProcess;

class Ranks : public ::testing::TestWithParam<int> {};

TEST_P(Ranks, ShardedEqualsUnsharded) {
  on_ranks(GetParam(), [](Communicator& communicator) { expect_parts_equal_whole(communicator); });
}

INSTANTIATE_TEST_SUITE_P(DistributedLoss, Ranks, ::testing::Values(1, 2, 3, 4, 7, 8));

TEST(DistributedLoss, SixteenBitWeightsAreRoundedOnce) {
  // On one rank the sum is rounded as the plain call rounds it.
  const ShardBatch batch({.joint = true, .dtype = DType::bfloat16});
  SingleProcess alone;
  std::vector<std::int64_t> all;
  for (std::int64_t b = 0; b < ShardBatch::B; ++b) all.push_back(b);
  const ShardOutcome whole = batch.whole();
  const ShardOutcome part = batch.part(all, alone);
  EXPECT_TRUE(same_numbers(part.weight, whole.weight));
  EXPECT_TRUE(same_numbers(part.bias, whole.bias));
  EXPECT_TRUE(same_numbers(part.first, whole.first));
}

TEST(DistributedLoss, DoesNotDependOnWhoOwnsWhat) {
  const ShardBatch batch({.joint = true, .dtype = DType::float32, .reproducible = true});
  std::vector<ShardOutcome> outcomes;
  for (const int step : {1, 3}) {
    on_ranks(4, [&](Communicator& communicator) {
      std::vector<std::int64_t> mine;
      for (std::int64_t b = ShardBatch::B - 1; b >= 0; --b) {
        if (b * step % 5 % 4 == communicator.rank()) mine.push_back(b);
      }
      const ShardOutcome part = batch.part(mine, communicator);
      if (communicator.rank() == 0) outcomes.push_back(part);
    });
  }
  EXPECT_EQ(outcomes[0].total, outcomes[1].total);
  EXPECT_TRUE(same_numbers(outcomes[0].weight, outcomes[1].weight));
  EXPECT_TRUE(same_numbers(outcomes[0].bias, outcomes[1].bias));
}

TEST(DistributedLoss, AnEmptyBatchCostsNothing) {
  const ShardBatch batch({.joint = true});
  on_ranks(2, [&](Communicator& communicator) {
    const ShardOutcome part = batch.part({}, communicator);
    EXPECT_EQ(part.total, 0.0);
    EXPECT_EQ(part.weight, std::vector<double>(part.weight.size(), 0.0));
  });
}

TEST(DistributedLoss, EveryRankHearsOfTheBadPart) {
  // Rank 1 holds labels that are too large: each rank throws, and the message names rank 1.
  ShardBatch good({});
  int heard = 0;
  std::mutex mutex;
  on_ranks(3, [&](Communicator& communicator) {
    std::vector<std::int64_t> frames = {communicator.rank() == 1 ? 9 : 3};
    std::vector<std::int64_t> labels = {1}, targets = {0};
    std::vector<double> logits(3 * 2 * 4, 0.0);
    LossRequest request;
    request.caller = "ft.distributed.loss";
    request.source = DenseSource{contiguous_ref(logits.data(), DType::float64, {1, 3, 2, 4})};
    request.variant = rnnt(position(-1));
    request.targets = DenseBatch::index(targets, {1, 1});
    request.frame_lengths = DenseBatch::index(frames, {1});
    request.target_lengths = DenseBatch::index(labels, {1});
    double total = 0.0;
    LossResult result;
    result.total = contiguous_ref(&total, DType::float64, {});
    ScratchBuffer scratch(
        distributed::plan_workspace(kCpuLayer, shape_of(request, result), {}, {}));
    const auto threw = throws(
        [&] {
          distributed::loss(kCpuLayer, request, result, {}, scratch.workspace(), {}, communicator);
        },
        "^ft.distributed.loss: rank 1: logit_lengths\\[0\\] is 9");
    const std::scoped_lock lock(mutex);
    EXPECT_TRUE(threw);
    heard += threw ? 1 : 0;
  });
  EXPECT_EQ(heard, 3);
}

TEST(DistributedLoss, RefusesAnUtteranceOnTwoRanks) {
  const ShardBatch batch({});
  EXPECT_TRUE(throws(
      [&] { on_ranks(2, [&](Communicator& communicator) { batch.part({3, 4}, communicator); }); },
      "two utterances have the number 3, expected distinct ones"));
}

}  // namespace
}  // namespace transducer::testing
