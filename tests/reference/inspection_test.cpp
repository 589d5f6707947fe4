// SPDX-License-Identifier: Apache-2.0
#include "reference/inspection.hpp"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "reference/variants/all.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/fixture.hpp"
#include "tests/support/messages.hpp"
#include "tests/support/noise.hpp"
#include "tests/support/tiny.hpp"

namespace transducer::testing {
namespace {

TEST(Inspection, EntropyOfAUniformLatticeIsTheLogOfTheNumberOfPaths) {
  for (const NamedVariant& variant : named_variants()) {
    DenseBatch batch = noise_batch(make_variant(variant), 1, 4, 2, 7);
    batch.targets = {1, 2};
    // Every path gets the same weight once its arcs have none.
    LossRequest request = batch.request();
    std::vector<double> weights(static_cast<std::size_t>(4 * 3 * batch.A()), 0.0);
    request.source = ArcWeightSource{DenseBatch::real(weights, {1, 4, 3, batch.A()})};
    const auto inspections = reference::inspect(request, {});
    const double cost = inspections[0].cost;
    EXPECT_NEAR(inspections[0].entropy, -cost, 1e-13) << variant.name;  // e^-cost paths of weight 1
    const auto paths =
        static_cast<double>(reference::enumerate_paths(tiny_lattice(batch, 0)).size());
    EXPECT_NEAR(inspections[0].entropy, std::log(paths), 1e-13) << variant.name;
  }
}

TEST(Inspection, EntropyIsTheSumOverPaths) {
  for (const NamedVariant& variant : named_variants()) {
    DenseBatch batch = noise_batch(make_variant(variant), 1, 4, 2, 7);
    batch.start_scores = noise(4, 31);
    batch.final_scores = noise(5, 32);
    batch.targets = {1, 2};
    const auto inspections = reference::inspect(batch.request(), {});
    double entropy = 0.0;
    for (const auto& path : reference::enumerate_paths(tiny_lattice(batch, 0))) {
      const double log_p = path.weight + inspections[0].cost;
      entropy -= std::exp(log_p) * log_p;
    }
    EXPECT_NEAR(inspections[0].entropy, entropy, 1e-12) << variant.name;
  }
}

/// T = 2, U = 1: the label comes at frame 0 with weight p(label at 0) p(blank) p(blank), or at 1.
TEST(Inspection, ExpectedFramesAndCountsByHand) {
  DenseBatch batch;
  batch.variant = rnnt(position(0));
  batch.T = 2;
  batch.U = 1;
  batch.targets = {1};
  // Nodes (0,0) (0,1) (1,0) (1,1); log-probabilities of blank and label.
  for (const double p : {0.75, 0.25, 0.5, 0.5, 0.5, 0.5, 1.0, 1.0}) {
    batch.logits.push_back(std::log(p));
  }
  batch.from_log_probs = true;
  const auto inspections = reference::inspect(batch.request(), {});
  const double early = 0.25 * 0.5 * 1.0;  // label, blank, blank
  const double late = 0.75 * 0.5 * 1.0;   // blank, label, blank
  const auto& i = inspections[0];
  EXPECT_NEAR(i.cost, -std::log(early + late), 1e-15);
  ASSERT_EQ(i.expected_frames.size(), 1u);
  EXPECT_NEAR(i.expected_frames[0], late / (early + late), 1e-15);
  EXPECT_NEAR(i.arc_counts[0], 2.0, 1e-15);
  EXPECT_NEAR(i.arc_counts[1], 1.0, 1e-15);
  ASSERT_EQ(i.group_occupancy.size(), 4u);
  EXPECT_NEAR(i.group_occupancy[0], 1.0, 1e-15);   // each arc subtracts the softmax once
  EXPECT_NEAR(i.group_occupancy[1], 0.25, 1e-15);  // (0, 1)
  EXPECT_NEAR(i.group_occupancy[2], 0.75, 1e-15);  // (1, 0)
  EXPECT_NEAR(i.group_occupancy[3], 1.0, 1e-15);
  ASSERT_TRUE(i.best_path.exists);
  EXPECT_NEAR(i.best_path.score, std::log(late), 1e-15);
  ASSERT_EQ(i.best_path.steps.size(), 3u);
  EXPECT_EQ(i.best_path.steps[1].t, 1);
  EXPECT_EQ(i.best_path.steps[1].u, 0);
  EXPECT_EQ(i.best_path.steps[1].arc, 1);
  EXPECT_NEAR(i.best_path.steps[1].weight, std::log(0.5), 1e-15);
}

TEST(Inspection, GroupOccupancyCarriesSignAndScale) {
  DenseBatch batch =
      noise_batch(make_variant(find_variant("hat"), {{"fastemit", 1.0}}), 1, 1, 1, 3);
  batch.variant = with_fastemit(hat(position(0)), 1.0);
  batch.targets = {1};
  const auto inspections = reference::inspect(batch.request(), {});
  // One path: label at (0, 0) with scale 2, then blank at (0, 1). Groups: blank decision, labels.
  EXPECT_EQ(difference("occupancy", inspections[0].group_occupancy,
                       std::vector<double>{2.0, 2.0, 1.0, 0.0}, 1e-15),
            "");
  EXPECT_EQ(inspections[0].entropy, 0.0);
}

TEST(Inspection, WithoutAPathOrWithNaNItSaysSo) {
  DenseBatch batch = noise_batch(monotonic(position(0), true), 3, 2, 3, 4);
  batch.target_lengths = {3, 1, 1};
  batch.logits[static_cast<std::size_t>(1 * 2 * 4 * 4)] = kNaN;
  const auto inspections = reference::inspect(batch.request(), {});
  EXPECT_EQ(inspections[0].cost, kInf);
  EXPECT_FALSE(inspections[0].best_path.exists);
  EXPECT_EQ(inspections[0].best_path.score, -kInf);
  EXPECT_TRUE(std::isnan(inspections[0].entropy));
  EXPECT_EQ(inspections[0].arc_counts, (std::vector<double>{0.0, 0.0}));
  EXPECT_TRUE(std::isnan(inspections[1].cost));
  EXPECT_FALSE(inspections[1].best_path.exists);
  EXPECT_TRUE(std::isnan(inspections[1].best_path.score));
  EXPECT_TRUE(std::isnan(inspections[1].arc_counts[0]));
  EXPECT_TRUE(std::isfinite(inspections[2].cost));
  EXPECT_TRUE(inspections[2].best_path.exists);
}

TEST(Inspection, BestPathScoreIsTheMaxSemiringsCost) {
  for (const NamedVariant& variant : named_variants()) {
    DenseBatch batch = noise_batch(make_variant(variant), 2, 5, 3, 8);
    batch.targets.assign(6, 1);
    batch.semiring = Semiring::max;
    const auto paths = reference::best_paths(batch.request(), {});
    const Outcome o = batch.run();
    for (std::size_t b = 0; b < 2; ++b) {
      EXPECT_EQ(paths[b].score, -o.costs[b]) << variant.name;
      double sum = 0.0;
      for (const auto& step : paths[b].steps) sum += step.weight;
      EXPECT_NEAR(sum, paths[b].score, 1e-13) << variant.name;
    }
  }
}

TEST(Inspection, ADeviceArrayIsRefusedBeforeItIsRead) {
  DenseBatch batch = noise_batch(rnnt(position(0)), 1, 2, 1, 3);
  LossRequest request = batch.request();
  TensorRef on_device = contiguous_ref(nullptr, DType::float64, {1, 2, 2, 3});
  on_device.device.type = DeviceType::cuda;
  request.source = DenseSource{on_device};
  const std::string message = "^test: the reference reads host memory";
  EXPECT_TRUE(throws([&] { reference::best_paths(request, {}); }, message));
  EXPECT_TRUE(throws([&] { reference::inspect(request, {}); }, message));
}

}  // namespace
}  // namespace transducer::testing
