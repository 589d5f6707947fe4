// SPDX-License-Identifier: Apache-2.0
//
// The derivative of the scores stage alone: the CPU layer's against the reference's, for incoming gradients of
// any sign.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cpu/loss.hpp"
#include "reference/loss.hpp"
#include "reference/variants/all.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/fixture.hpp"
#include "tests/support/messages.hpp"
#include "tests/support/noise.hpp"

namespace transducer::testing {
namespace {

struct ScoresGradient {
  std::vector<double> logits, arc_scores;
};

using ScoresBackward = void (*)(const LossRequest&, const TensorRef&, const LossResult&,
                                const Options&, const Workspace&);

ScoresGradient run(DenseBatch& batch, std::vector<double>& flow, ScoresBackward backward,
                   WorkspacePlan (*plan)(const LossShape&, const Options&)) {
  ScoresGradient out;
  LossResult result;
  result.logits_gradient = DenseBatch::make(out.logits, {batch.B, batch.T, batch.U + 1, batch.K});
  result.arc_scores_gradient =
      DenseBatch::make(out.arc_scores, {batch.B, batch.T, batch.U + 1, batch.A()});
  const LossRequest request = batch.request();
  const Options options{.threads = 2};
  ScratchBuffer scratch(plan(shape_of(request, result), options));
  backward(request, DenseBatch::real(flow, {batch.B, batch.T, batch.U + 1, batch.A()}), result,
           options, scratch.workspace());
  return out;
}

TEST(CpuScoresBackward, EqualsTheReference) {
  for (const NamedVariant& variant : named_variants()) {
    DenseBatch batch = noise_batch(make_variant(variant, {{"fastemit", 0.5}}), 3, 7, 4, 9);
    batch.frame_lengths = {7, 3, 1};
    batch.target_lengths = {4, 1, 0};
    batch.targets.assign(12, 1);
    batch.clamp = 0.01;
    batch.reduction = Reduction::mean;
    batch.arc_scores = noise(3 * 7 * 5 * batch.A(), 21);
    batch.arc_scores[3] = -kInf;
    std::vector<double> flow = noise(static_cast<std::int64_t>(batch.arc_scores.size()), 22);
    // What flows out of the first nodes adds up to 0.
    std::fill_n(flow.begin(), batch.A(), 0.0);
    flow[0] = 1.0;
    flow[1] = -1.0;
    const ScoresGradient want =
        run(batch, flow, reference::scores_backward, reference::plan_workspace);
    const ScoresGradient got = run(batch, flow, cpu::scores_backward, cpu::plan_workspace);
    EXPECT_EQ(difference("logits", got.logits, want.logits, 1e-13), "") << variant.name;
    EXPECT_EQ(difference("arc scores", got.arc_scores, want.arc_scores, 1e-13), "") << variant.name;
  }
}

TEST(CpuScoresBackward, RefusesAnotherShape) {
  DenseBatch batch = noise_batch(make_variant(named_variants()[0], {}), 1, 2, 1, 5);
  batch.frame_lengths = {2};
  batch.target_lengths = {1};
  batch.targets = {1};
  std::vector<double> flow(4, 0.0);
  LossResult result;
  const LossRequest request = batch.request();
  ScratchBuffer scratch(cpu::plan_workspace(shape_of(request, result), {}));
  EXPECT_TRUE(throws(
      [&] {
        cpu::scores_backward(request, DenseBatch::real(flow, {1, 1, 2, 2}), result, {},
                             scratch.workspace());
      },
      "gradient of the arc weights has shape \\[1, 1, 2, 2\\], expected \\[1, 2, 2, 2\\]"));
}

}  // namespace
}  // namespace transducer::testing
