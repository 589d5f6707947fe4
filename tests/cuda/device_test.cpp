// SPDX-License-Identifier: Apache-2.0
//
// What a device brings with it: forward and backward apart, the same bits every time and whatever the batch
// mates, streams and threads side by side, capture in a graph, lengths that do not fit, errors.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "reference/variants/all.hpp"
#include "tests/support/cuda_outcome.cuh"
#include "tests/support/messages.hpp"
#include "tests/support/outcome.hpp"

namespace transducer::testing {
namespace {

/// Ragged utterances of several strips, every kind of score.
DenseBatch ragged_batch(const NamedVariant& variant, bool scores = true) {
  DenseBatch batch;
  batch.B = 4;
  batch.T = 29;
  batch.U = 70;
  batch.variant = make_variant(variant, {});
  batch.K = batch.variant.heads + 21;
  std::mt19937_64 random(20);
  std::normal_distribution<double> normal(0.0, 2.0);
  const auto fill = [&](std::vector<double>& values, std::int64_t count) {
    values.resize(static_cast<std::size_t>(count));
    for (double& value : values) value = normal(random);
  };
  fill(batch.logits, batch.B * batch.T * (batch.U + 1) * batch.K);
  if (scores) {
    fill(batch.arc_scores, batch.B * batch.T * (batch.U + 1) * batch.A());
    fill(batch.start_scores, batch.B * batch.T);
    fill(batch.final_scores, batch.B * (batch.T + 1));
  }
  for (std::int64_t b = 0; b < batch.B; ++b) {
    batch.frame_lengths.push_back(batch.T - 6 * b);
    batch.target_lengths.push_back(batch.U - (b * 37) % batch.U);
    for (std::int64_t u = 0; u < batch.U; ++u) {
      batch.targets.push_back(static_cast<std::int64_t>(random() % 20));
    }
  }
  return batch;
}

LayerRun of_type(DType dtype) {
  LayerRun run{.dtype = dtype, .scores_dtype = dtype};
  run.skip_mass = -1.0;  // the default, so that the cut is part of the promise
  return run;
}

class EachType : public ::testing::TestWithParam<DType> {};

TEST_P(EachType, ForwardAndTwoBackwardsAreTheWholeCall) {
  for (const NamedVariant& variant : named_variants()) {
    for (bool scores : {false, true}) {
      DenseBatch batch = ragged_batch(variant, scores);
      const LayerOutcome together = run_cuda(batch, of_type(GetParam()));
      const LayerOutcome apart = run_cuda(batch, of_type(GetParam()), CudaPasses::apart);
      EXPECT_EQ(bit_difference(variant.name, apart, together, batch.B), "");
    }
  }
}

TEST_P(EachType, EveryRunHasTheSameBits) {
  for (bool scores : {false, true}) {
    DenseBatch batch = ragged_batch(named_variants()[0], scores);
    const LayerOutcome first = run_cuda(batch, of_type(GetParam()));
    for (int i = 0; i < 50; ++i) {
      const LayerOutcome again = run_cuda(batch, of_type(GetParam()));
      ASSERT_EQ(bit_difference("again", again, first, batch.B), "") << "run " << i;
      ASSERT_EQ(bit_difference("total", {&again.total, 1}, {&first.total, 1}), "");
    }
  }
}

TEST_P(EachType, BatchMatesDoNotChangeBits) {
  for (const NamedVariant& variant : named_variants()) {
    for (bool scores : {false, true}) {
      DenseBatch batch = ragged_batch(variant, scores);
      const LayerOutcome all = run_cuda(batch, of_type(GetParam()));
      for (std::int64_t b = 0; b < batch.B; ++b) {
        DenseBatch single = select(batch, {b});
        const LayerOutcome alone = run_cuda(single, of_type(GetParam()));
        EXPECT_EQ(bit_difference(variant.name, everything_of(alone, 0, 1),
                                 everything_of(all, b, batch.B)),
                  "")
            << "utterance " << b;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(CudaDevice, EachType,
                         ::testing::Values(DType::float64, DType::float32, DType::bfloat16),
                         [](const auto& info) { return dtype_name(info.param); });

/// A call on device memory that stays, run on a stream of its own.
class StandingCall {
 public:
  explicit StandingCall(DenseBatch& batch) : batch_(batch) {
    const std::int64_t nodes = batch.B * batch.T * (batch.U + 1);
    LossRequest host = batch.request();
    LossResult host_result;
    host_result.costs = DenseBatch::make(costs, {batch.B});
    host_result.total = contiguous_ref(&total, DType::float64, {});
    host_result.logits_gradient =
        DenseBatch::make(gradient, {batch.B, batch.T, batch.U + 1, nodes == 0 ? 1 : batch.K});
    request_ = on_device(host, copies_);
    result_ = on_device(host_result, copies_);
    workspace_ = device_workspace(cuda::plan_workspace(shape_of(request_, result_), {}));
    cuda::check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    cuda::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  ~StandingCall() { cudaStreamDestroy(stream_); }
  StandingCall(const StandingCall&) = delete;

  void enqueue() { cuda::loss(request_, result_, {}, workspace_, stream_); }
  void wait_and_fetch() {
    cuda::check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    copies_.fetch();
  }
  /// What the host arrays of the batch hold by now goes to the device.
  void renew_lengths() {
    const auto renew = [&](const TensorRef& device, const std::vector<std::int64_t>& host) {
      cuda::check_cuda(
          cudaMemcpy(device.data, host.data(), host.size() * 8, cudaMemcpyHostToDevice),
          "cudaMemcpy");
    };
    renew(request_.frame_lengths, batch_.frame_lengths);
    renew(request_.target_lengths, batch_.target_lengths);
  }
  cudaStream_t stream() const { return stream_; }

  std::vector<double> costs, gradient;
  double total = 0.0;

 private:
  DenseBatch& batch_;
  DeviceCopies copies_;
  LossRequest request_;
  LossResult result_;
  Workspace workspace_;
  cudaStream_t stream_ = nullptr;
};

/// Capturing refuses whatever waits for the device or allocates, so this is the test that nothing does; and
/// lengths are read when the graph runs, not when it is made.
TEST(CudaDevice, ACapturedCallFollowsTheLengthsOnTheDevice) {
  for (const NamedVariant& variant : named_variants()) {
    DenseBatch batch = ragged_batch(variant);
    batch.reduction = Reduction::mean_frame;
    StandingCall call(batch);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    cuda::check_cuda(cudaStreamBeginCapture(call.stream(), cudaStreamCaptureModeGlobal), "capture");
    call.enqueue();
    cuda::check_cuda(cudaStreamEndCapture(call.stream(), &graph), "end of capture");
    cuda::check_cuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    for (std::int64_t shorter : {0, 5, 11}) {
      for (std::int64_t& length : batch.frame_lengths)
        length = std::max<std::int64_t>(length - shorter, 1);
      for (std::int64_t& length : batch.target_lengths)
        length = std::max<std::int64_t>(length - shorter, 0);
      call.renew_lengths();
      cuda::check_cuda(cudaGraphLaunch(executable, call.stream()), "cudaGraphLaunch");
      call.wait_and_fetch();
      const Outcome want = batch.run();
      EXPECT_EQ(difference("costs", call.costs, want.costs, 1e-10) +
                    difference("total", call.total, want.total, 1e-10) +
                    difference("gradient", call.gradient, want.logits_gradient, 1e-10),
                "")
          << variant.name << " " << shorter;
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    DeviceArena::instance().reset();
  }
}

TEST(CudaDevice, StreamsAndThreadsDoNotMeet) {
  DenseBatch one = ragged_batch(named_variants()[0], false);
  DenseBatch two = ragged_batch(named_variants()[3]);
  const Outcome want_one = one.run();
  const Outcome want_two = two.run();
  StandingCall first(one), second(two);
  for (int round = 0; round < 20; ++round) {
    first.enqueue();
    second.enqueue();
  }
  first.wait_and_fetch();
  second.wait_and_fetch();
  EXPECT_EQ(difference("first", first.gradient, want_one.logits_gradient, 1e-10), "");
  EXPECT_EQ(difference("second", second.gradient, want_two.logits_gradient, 1e-10), "");
  std::vector<std::thread> threads;
  for (StandingCall* call : {&first, &second}) {
    threads.emplace_back([call] {
      for (int round = 0; round < 20; ++round) call->enqueue();
      call->wait_and_fetch();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(difference("first", first.gradient, want_one.logits_gradient, 1e-10), "");
  EXPECT_EQ(difference("second", second.gradient, want_two.logits_gradient, 1e-10), "");
  DeviceArena::instance().reset();
}

/// Nobody checks what lies on the device before it is used: a wrong length or label is no stray access.
TEST(CudaDevice, LengthsAndLabelsThatDoNotFitSpoilTheirUtteranceAlone) {
  DenseBatch batch = ragged_batch(named_variants()[0], false);
  const Outcome want = batch.run();
  DenseBatch wrong = batch;
  wrong.frame_lengths[1] = batch.T + 1;
  wrong.target_lengths[2] = -3;
  wrong.targets[static_cast<std::size_t>(3 * batch.U)] = batch.K + 1000000;
  for (DType dtype : {DType::float64, DType::float32}) {
    const LayerOutcome got = run_cuda(wrong, {.dtype = dtype});
    EXPECT_NEAR(got.costs[0], want.costs[0], 1e-4);
    EXPECT_TRUE(std::isnan(got.costs[1])) << got.costs[1];
    EXPECT_TRUE(std::isnan(got.costs[2])) << got.costs[2];
    EXPECT_EQ(got.costs[3], kInf);
  }
}

TEST(CudaDevice, ArraysInHostMemoryAreRefused) {
  DenseBatch batch = ragged_batch(named_variants()[0], false);
  const LossRequest request = batch.request();
  std::vector<double> costs;
  LossResult result;
  result.costs = DenseBatch::make(costs, {batch.B});
  EXPECT_TRUE(throws([&] { cuda::loss(request, result, {}, {}, nullptr); },
                     "test: logits is in host memory, expected a CUDA array"));
}

TEST(CudaDevice, AWorkspaceOneByteShortIsRefused) {
  DenseBatch batch = ragged_batch(named_variants()[0], false);
  DeviceCopies copies;
  const LossRequest request = on_device(batch.request(), copies);
  std::vector<double> gradient;
  LossResult host;
  host.logits_gradient = DenseBatch::make(gradient, {batch.B, batch.T, batch.U + 1, batch.K});
  const LossResult result = on_device(host, copies);
  Workspace workspace = device_workspace(cuda::plan_workspace(shape_of(request, result), {}));
  Workspace less = workspace;
  less.scratch = less.scratch.first(less.scratch.size() - 1);
  EXPECT_TRUE(throws([&] { cuda::loss(request, result, {}, less, nullptr); },
                     "test: workspace.scratch has [0-9]+ bytes, expected [0-9]+"));
  less = workspace;
  less.saved = less.saved.first(less.saved.size() - 1);
  EXPECT_TRUE(throws([&] { cuda::loss(request, result, {}, less, nullptr); },
                     "test: workspace.saved has [0-9]+ bytes, expected [0-9]+"));
  DeviceArena::instance().reset();
}

}  // namespace
}  // namespace transducer::testing
