// SPDX-License-Identifier: Apache-2.0
//
// The same bits whatever the thread count, the batch mates and the run; several callers at once; a
// forked child; cancellation; errors out of tasks.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cpu/parallel.hpp"
#include "reference/variants/all.hpp"
#include "tests/support/cpu_outcome.hpp"
#include "tests/support/joint_batch.hpp"
#include "tests/support/messages.hpp"
#include "tests/support/outcome.hpp"

namespace transducer::testing {
namespace {

/// Ragged utterances, every kind of score, large enough to give several threads something to do.
DenseBatch ragged_batch(const NamedVariant& variant) {
  DenseBatch batch;
  batch.B = 5;
  batch.T = 23;
  batch.U = 9;
  batch.variant = make_variant(variant, {});
  batch.K = batch.variant.heads + 37;
  std::mt19937_64 random(20);
  std::normal_distribution<double> normal(0.0, 2.0);
  const auto fill = [&](std::vector<double>& values, std::int64_t count) {
    values.resize(static_cast<std::size_t>(count));
    for (double& value : values) value = normal(random);
  };
  fill(batch.logits, batch.B * batch.T * (batch.U + 1) * batch.K);
  fill(batch.arc_scores, batch.B * batch.T * (batch.U + 1) * batch.A());
  fill(batch.start_scores, batch.B * batch.T);
  fill(batch.final_scores, batch.B * (batch.T + 1));
  for (std::int64_t b = 0; b < batch.B; ++b) {
    batch.frame_lengths.push_back(batch.T - 4 * b);
    batch.target_lengths.push_back((b * 7) % (batch.U + 1));
    for (std::int64_t u = 0; u < batch.U; ++u) {
      batch.targets.push_back(static_cast<std::int64_t>(random() % 36));
    }
  }
  return batch;
}

JointBatch joint_batch() {
  JointBatch batch{.B = 3, .T = 90, .U = 14, .H = 24, .K = 1100};
  batch.variant = make_variant(named_variants()[0], {});
  batch.dropout = 0.1;
  batch.seed = 3;
  batch.fill(21);
  batch.utterance_ids = {0, 1, 2};
  return batch;
}

CpuRun with_threads(int threads, DType dtype) {
  CpuRun run{.dtype = dtype, .scores_dtype = dtype};
  run.options.threads = threads;
  run.skip_mass = -1.0;  // the default, so that the cut is part of the promise
  return run;
}

std::string joint_bits(const JointOutcome& got, const JointOutcome& want) {
  return bit_difference("costs", got.costs, want.costs) +
         bit_difference("encoder", got.encoder, want.encoder) +
         bit_difference("predictor", got.predictor, want.predictor) +
         bit_difference("weight", got.weight, want.weight) +
         bit_difference("bias", got.bias, want.bias);
}

class EachType : public ::testing::TestWithParam<DType> {};

TEST_P(EachType, ThreadsDoNotChangeBits) {
  for (const NamedVariant& variant : named_variants()) {
    DenseBatch batch = ragged_batch(variant);
    const CpuOutcome one = run_cpu(batch, with_threads(1, GetParam()));
    for (int threads : {1, 2, 3, 7}) {
      const CpuOutcome many = run_cpu(batch, with_threads(threads, GetParam()));
      EXPECT_EQ(bit_difference(variant.name, many, one, batch.B), "") << threads << " threads";
      EXPECT_EQ(bit_difference("total", {&many.total, 1}, {&one.total, 1}), "");
    }
  }
}

TEST_P(EachType, BatchMatesDoNotChangeBits) {
  for (const NamedVariant& variant : named_variants()) {
    DenseBatch batch = ragged_batch(variant);
    const CpuOutcome all = run_cpu(batch, with_threads(2, GetParam()));
    for (std::int64_t b = 0; b < batch.B; ++b) {
      DenseBatch single = select(batch, {b});
      const CpuOutcome alone = run_cpu(single, with_threads(2, GetParam()));
      EXPECT_EQ(
          bit_difference(variant.name, everything_of(alone, 0, 1), everything_of(all, b, batch.B)),
          "")
          << "utterance " << b;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(CpuDeterminism, EachType,
                         ::testing::Values(DType::float64, DType::float32, DType::bfloat16),
                         [](const auto& info) { return dtype_name(info.param); });

TEST(CpuDeterminism, JointBitsDependOnNeitherThreadsNorBatchMates) {
  for (DType dtype : {DType::float64, DType::float32}) {
    JointBatch batch = joint_batch();
    batch.encoder_dtype = batch.predictor_dtype = batch.weight_dtype = batch.bias_dtype = dtype;
    batch.skip_mass = -1.0;
    batch.threads = 1;
    const JointOutcome one = batch.run(false);
    for (int threads : {1, 2, 3, 7}) {
      batch.threads = threads;
      EXPECT_EQ(joint_bits(batch.run(false), one), "") << threads << " threads";
    }
    for (std::int64_t b = 0; b < batch.B; ++b) {
      JointBatch single = batch;
      single.B = 1;
      single.encoder = part(batch.encoder, b, batch.B);
      single.predictor = part(batch.predictor, b, batch.B);
      single.targets = part(batch.targets, b, batch.B);
      single.frame_lengths = part(batch.frame_lengths, b, batch.B);
      single.target_lengths = part(batch.target_lengths, b, batch.B);
      single.utterance_ids = {b};
      const JointOutcome alone = single.run(false);
      EXPECT_EQ(bit_difference("cost", alone.costs, part(one.costs, b, batch.B)), "");
      EXPECT_EQ(bit_difference("encoder", alone.encoder, part(one.encoder, b, batch.B)), "");
      EXPECT_EQ(bit_difference("predictor", alone.predictor, part(one.predictor, b, batch.B)), "");
    }
  }
}

TEST(CpuDeterminism, SeveralCallersAtOnce) {
  DenseBatch batch = ragged_batch(named_variants()[3]);
  const CpuOutcome want = run_cpu(batch, with_threads(2, DType::float32));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  callers.reserve(4);
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 5; ++i) {
        DenseBatch mine = batch;
        const CpuOutcome got = run_cpu(mine, with_threads(2, DType::float32));
        if (!bit_difference("caller", got, want, mine.B).empty()) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(CpuDeterminism, AForkedChildComputesTheSameBits) {
  DenseBatch batch = ragged_batch(named_variants()[0]);
  const CpuOutcome want = run_cpu(batch, with_threads(2, DType::float32));  // threads exist now
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const CpuOutcome got = run_cpu(batch, with_threads(2, DType::float32));
    _exit(bit_difference("child", got, want, batch.B).empty() ? 0 : 1);
  }
  int status = -1;
  pid_t ended = 0;
  const auto start = std::chrono::steady_clock::now();
  while (ended == 0 && std::chrono::steady_clock::now() - start < std::chrono::seconds(60)) {
    ended = waitpid(child, &status, WNOHANG);
    if (ended == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (ended == 0) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    FAIL() << "the child hangs";
  }
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0) << "the child's bits differ";
  // The parent keeps its threads.
  EXPECT_EQ(cpu::thread_count({.threads = 3}), 3);
}

TEST(CpuDeterminism, CancellingEndsACall) {
  for (int threads : {1, 2}) {
    DenseBatch batch = ragged_batch(named_variants()[0]);
    int polls = 0;
    CpuRun run = with_threads(threads, DType::float64);
    run.options.cancelled_context = &polls;
    run.options.cancelled = [](void* count) { return ++*static_cast<int*>(count) < 0; };
    run_cpu(batch, run);
    EXPECT_GE(polls, 5) << "the callback is hardly polled";
    // Whenever it says yes, the call ends and does not ask again and again.
    for (int last : {1, 2, 5}) {
      struct Context {
        int polls, last;
      } context{0, last};
      run.options.cancelled_context = &context;
      run.options.cancelled = [](void* c) {
        auto& state = *static_cast<Context*>(c);
        return ++state.polls >= state.last;
      };
      EXPECT_TRUE(throws<Cancelled>([&] { run_cpu(batch, run); }, "test: cancelled")) << last;
      EXPECT_EQ(context.polls, last);
    }
  }
}

TEST(CpuDeterminism, CancellingEndsALongCallSoon) {
  using Clock = std::chrono::steady_clock;
  DenseBatch batch = ragged_batch(named_variants()[0]);
  std::vector<std::int64_t> many(4000);  // seconds of work, were it not cancelled
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::int64_t>(i) % batch.B;
  DenseBatch large = select(batch, many);
  Clock::time_point when = Clock::time_point::max();
  CpuRun run = with_threads(2, DType::float32);
  run.options.cancelled_context = &when;
  run.options.cancelled = [](void* context) {
    auto& time = *static_cast<Clock::time_point*>(context);
    if (time == Clock::time_point::max()) time = Clock::now() + std::chrono::milliseconds(1);
    return Clock::now() >= time;
  };
  EXPECT_TRUE(throws<Cancelled>([&] { run_cpu(large, run); }, "test: cancelled"));
  EXPECT_LT(Clock::now() - when, std::chrono::seconds(1));
}

TEST(CpuDeterminism, ErrorsInTasksComeOut) {
  for (int threads : {1, 2, 7}) {
    const Options options{.threads = threads};
    const cpu::Team team(options, "test");
    std::atomic<int> done = 0;
    const auto run = [&] {
      team.for_each(1000, [&](std::int64_t task, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, threads);
        if (task == 17) throw std::out_of_range("task 17");
        ++done;
      });
    };
    EXPECT_TRUE(throws<std::out_of_range>(run, "task 17"));
    EXPECT_LT(done, 1000);
    // The team still works, and every task runs once.
    std::vector<std::atomic<int>> runs(257);
    team.for_each(257, [&](std::int64_t task, int) { ++runs[static_cast<std::size_t>(task)]; });
    for (const auto& count : runs) EXPECT_EQ(count, 1);
  }
}

}  // namespace
}  // namespace transducer::testing
