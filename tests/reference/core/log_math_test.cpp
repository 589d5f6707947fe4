// SPDX-License-Identifier: Apache-2.0
#include "reference/core/log_math.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace transducer {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(LogMath, LogAddOfLogsIsTheLogOfTheSum) {
  EXPECT_NEAR(log_add(std::log(2.0), std::log(3.0)), std::log(5.0), 1e-15);
  EXPECT_NEAR(log_add(std::log(3.0), std::log(2.0)), std::log(5.0), 1e-15);
  EXPECT_NEAR(log_add(0.0f, 0.0f), std::log(2.0f), 1e-7f);
  EXPECT_EQ(log_add(1000.0, 0.0), 1000.0);
  EXPECT_EQ(log_add(-1000.0, -1000.0), -1000.0 + std::log(2.0));
}

TEST(LogMath, LogZeroIsNeutral) {
  EXPECT_EQ(log_add(-kInf, 1.5), 1.5);
  EXPECT_EQ(log_add(1.5, -kInf), 1.5);
  EXPECT_EQ(log_add(-kInf, -kInf), -kInf);
  EXPECT_EQ(kLogZero<float>, -std::numeric_limits<float>::infinity());
}

TEST(LogMath, LogAddKeepsNaN) {
  EXPECT_TRUE(std::isnan(log_add(kNaN, 1.0)));
  EXPECT_TRUE(std::isnan(log_add(1.0, kNaN)));
  EXPECT_TRUE(std::isnan(log_add(kNaN, kNaN)));
}

TEST(LogMath, SoftplusNeitherOverflowsNorVanishes) {
  EXPECT_NEAR(softplus(0.0), std::log(2.0), 1e-16);
  EXPECT_NEAR(softplus(std::log(3.0)), std::log(4.0), 1e-15);
  EXPECT_NEAR(softplus(-std::log(3.0)), std::log(4.0 / 3.0), 1e-15);
  EXPECT_EQ(softplus(1000.0), 1000.0);
  EXPECT_NEAR(softplus(-50.0) / std::exp(-50.0), 1.0, 1e-15);
  EXPECT_EQ(softplus(-kInf), 0.0);
  EXPECT_TRUE(std::isnan(softplus(kNaN)));
}

TEST(LogMath, SigmoidIsTheDerivativeOfSoftplus) {
  EXPECT_EQ(sigmoid(0.0), 0.5);
  EXPECT_NEAR(sigmoid(std::log(3.0)), 0.75, 1e-16);
  EXPECT_NEAR(sigmoid(-std::log(3.0)), 0.25, 1e-16);
  EXPECT_EQ(sigmoid(1000.0), 1.0);
  EXPECT_EQ(sigmoid(-1000.0), 0.0);
  for (int step = -8; step <= 8; ++step) {
    const double x = 0.75 * step;
    EXPECT_NEAR((softplus(x + 1e-5) - softplus(x - 1e-5)) / 2e-5, sigmoid(x), 1e-10) << x;
  }
  EXPECT_TRUE(std::isnan(sigmoid(kNaN)));
}

TEST(LogMath, OnlineSumIsTheLogSumInAnyOrder) {
  const std::vector<double> weights{3.0, 1.0, 4.0, 1.0, 5.0, 9.0};
  for (const bool ascending : {false, true}) {
    OnlineLogSumExp<double> sum;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      sum.observe(std::log(weights[ascending ? i : weights.size() - 1 - i]));
    }
    EXPECT_NEAR(sum.log_z(), std::log(23.0), 1e-15);
    EXPECT_NEAR(sum.probability(std::log(4.0)), 4.0 / 23.0, 1e-15);
  }
}

TEST(LogMath, OnlineSumSurvivesExtremes) {
  OnlineLogSumExp<double> sum;
  EXPECT_EQ(sum.log_z(), -kInf);  // nothing observed
  sum.observe(-kInf);
  EXPECT_EQ(sum.log_z(), -kInf);
  sum.observe(-2000.0);
  EXPECT_EQ(sum.log_z(), -2000.0);
  sum.observe(2000.0);
  EXPECT_EQ(sum.log_z(), 2000.0);
  sum.observe(-kInf);
  EXPECT_EQ(sum.log_z(), 2000.0);
  sum.observe(2000.0);
  EXPECT_EQ(sum.log_z(), 2000.0 + std::log(2.0));
}

TEST(LogMath, MergeEqualsOneStream) {
  const auto stream = [](std::initializer_list<double> values) {
    OnlineLogSumExp<double> sum;
    for (double value : values) sum.observe(value);
    return sum;
  };
  for (const bool swapped : {false, true}) {
    auto low = stream({-1.0, 0.5});
    auto high = stream({3.0, 2.0, -kInf});
    if (swapped) std::swap(low, high);
    low.merge(high);
    EXPECT_NEAR(low.log_z(), stream({-1.0, 0.5, 3.0, 2.0}).log_z(), 1e-15);
  }
  auto some = stream({1.0});
  some.merge(stream({}));
  EXPECT_EQ(some.log_z(), 1.0);
  auto none = stream({});
  none.merge(stream({1.0}));
  EXPECT_EQ(none.log_z(), 1.0);
  none = stream({});
  none.merge(stream({-kInf}));
  EXPECT_EQ(none.log_z(), -kInf);
}

TEST(LogMath, OnlineSumKeepsNaN) {
  for (const bool first : {true, false}) {
    OnlineLogSumExp<double> sum;
    if (!first) sum.observe(1.0);
    sum.observe(kNaN);
    if (first) sum.observe(1.0);
    EXPECT_TRUE(std::isnan(sum.log_z())) << first;
    OnlineLogSumExp<double> other;
    other.observe(0.0);
    other.merge(sum);
    EXPECT_TRUE(std::isnan(other.log_z())) << first;
  }
}

}  // namespace
}  // namespace transducer
