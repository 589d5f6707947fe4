// SPDX-License-Identifier: Apache-2.0
#include "distributed/reproducible_sum.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/thread_ranks.hpp"

namespace transducer::distributed {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double sum_of(const std::vector<double>& terms) {
  ReproducibleSum sum(1);
  for (const double term : terms) sum.add(0, std::span(&term, 1));
  double result = -1.0;
  sum.read(0, std::span(&result, 1));
  return result;
}

/// Terms of very different sizes and both signs.
std::vector<double> mixed_terms(std::size_t count, int spread) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  std::vector<double> terms;
  for (std::size_t i = 0; i < count; ++i) {
    terms.push_back(std::ldexp(normal(random), static_cast<int>(random() % spread) - spread / 2));
  }
  return terms;
}

TEST(ReproducibleSum, OfFewTermsIsExact) {
  EXPECT_EQ(sum_of({}), 0.0);
  EXPECT_EQ(sum_of({0.1}), 0.1);
  EXPECT_EQ(sum_of({1e300, -1e300}), 0.0);
  EXPECT_EQ(sum_of({1e-200, 3e-200}), 4e-200);
  EXPECT_EQ(sum_of({-5.5, 2.25}), -3.25);
  EXPECT_EQ(sum_of({std::numeric_limits<double>::max()}), std::numeric_limits<double>::max());
  // A double sum in this order gives 0.
  EXPECT_EQ(sum_of({0x1p60, 1.0, -0x1p60}), 1.0);
}

TEST(ReproducibleSum, DropsWhatIsFarBelowTheLargestTerm) {
  EXPECT_EQ(sum_of({0x1p100, 1e-30, -0x1p100}), 0.0);
  EXPECT_EQ(sum_of({1e-260}), 0.0);
}

TEST(ReproducibleSum, DoesNotDependOnTheOrder) {
  for (const int spread : {4, 60, 200, 600}) {
    std::vector<double> terms = mixed_terms(500, spread);
    const double expected = sum_of(terms);
    std::mt19937_64 random(4);
    for (int i = 0; i < 20; ++i) {
      std::shuffle(terms.begin(), terms.end(), random);
      ASSERT_EQ(sum_of(terms), expected) << spread;
    }
    std::sort(terms.begin(), terms.end());
    EXPECT_EQ(sum_of(terms), expected);
  }
}

TEST(ReproducibleSum, IsCloseToALongDoubleSum) {
  const std::vector<double> terms = mixed_terms(2000, 30);
  long double expected = 0.0L;
  double largest = 0.0;
  for (const double term : terms) {
    expected += term;
    largest = std::max(largest, std::abs(term));
  }
  EXPECT_NEAR(sum_of(terms), static_cast<double>(expected), 2000 * 0x1p-63 * largest);
}

TEST(ReproducibleSum, OfWhatIsNotFiniteIsNaN) {
  EXPECT_TRUE(std::isnan(sum_of({1.0, std::nan("")})));
  EXPECT_TRUE(std::isnan(sum_of({kInfinity, 1.0})));
  EXPECT_TRUE(std::isnan(sum_of({-kInfinity})));
}

TEST(ReproducibleSum, DoesNotDependOnWhichRankAddsWhat) {
  constexpr std::size_t kElements = 3;
  std::vector<double> terms = mixed_terms(300, 300);
  terms[kElements * 7] = std::nan("");
  std::vector<double> expected(kElements);
  for (const int ranks : {1, 2, 3, 7}) {
    std::vector<double> got(kElements);
    testing::on_ranks(ranks, [&](Communicator& communicator) {
      ReproducibleSum sum(kElements);
      for (std::size_t i = 0; i < terms.size() / kElements; ++i) {
        if (static_cast<int>(i * 31 % 8) % ranks != communicator.rank()) continue;
        sum.add(0, std::span<const double>(terms).subspan(i * kElements, kElements));
      }
      sum.combine(communicator);
      std::vector<double> mine(kElements);
      sum.read(0, mine);
      if (communicator.rank() == ranks - 1) got = std::move(mine);
    });
    if (ranks == 1) expected = got;
    EXPECT_TRUE(std::isnan(got[0])) << ranks;
    EXPECT_EQ(got[1], expected[1]) << ranks;
    EXPECT_EQ(got[2], expected[2]) << ranks;
  }
}

}  // namespace
}  // namespace transducer::distributed
