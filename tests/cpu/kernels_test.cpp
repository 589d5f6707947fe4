// SPDX-License-Identifier: Apache-2.0
//
// Every copy of the kernels that this build has and this processor runs, called by its own entry:
// e^x and log x over their whole range, and the loops over rows of lattice nodes.
#include "cpu/kernels.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpu/supported_kernels.hpp"

namespace transducer::cpu {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// |got - want| in units of the last place of want, a normal number.
template <class Real>
double ulps(Real got, long double want) {
  const int digits = std::numeric_limits<Real>::digits;
  const long double unit = std::ldexp(1.0L, std::ilogb(want) - digits + 1);
  return static_cast<double>(std::abs(static_cast<long double>(got) - want) / unit);
}

class EachCopy : public ::testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& kernels() const { return *GetParam(); }
};

TEST_P(EachCopy, NamesItself) {
  const std::string name = kernels().instruction_set;
  EXPECT_TRUE(name == "baseline" || name == "avx2" || name == "avx512") << name;
}

TEST_P(EachCopy, FloatExpIsAccurateAtEveryExponent) {
  std::vector<float> x;
  // 32 mantissas of every exponent and sign, down to denormal numbers.
  for (std::uint32_t high = 0; high < 0xff8; ++high) {
    for (std::uint32_t i = 0; i < 16; ++i) {
      const std::uint32_t bits = (high << 20) + i * 65537u;
      if ((bits >> 23 & 0xff) != 0xff) x.push_back(std::bit_cast<float>(bits));
    }
  }
  // The range where the result is neither 0, 1 nor infinite, densely; both ends.
  for (int i = 0; i <= 300000; ++i)
    x.push_back(-105.0f + 194.0f * static_cast<float>(i) / 300000.0f);
  for (float end : {-87.33654f, 88.72283f, -103.97f}) {
    for (int i = -50; i <= 50; ++i) x.push_back(end + static_cast<float>(i) * 1e-5f);
  }
  std::vector<float> y(x.size());
  kernels().lattice.exp_all_float(x.data(), static_cast<std::int64_t>(x.size()), y.data());
  double worst = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const long double want = std::exp(static_cast<long double>(x[i]));
    if (want > static_cast<long double>(std::numeric_limits<float>::max())) {
      // The last step before overflow may round up.
      ASSERT_TRUE(y[i] == std::numeric_limits<float>::infinity() ||
                  (y[i] > 3.4028e38f && x[i] < 88.7229f))
          << x[i] << " gives " << y[i];
    } else if (want < static_cast<long double>(std::numeric_limits<float>::min())) {
      ASSERT_LE(std::abs(static_cast<long double>(y[i]) - want),
                static_cast<long double>(std::numeric_limits<float>::min()))
          << x[i];
    } else {
      const double error = ulps(y[i], want);
      worst = std::max(worst, error);
      ASSERT_LE(error, 3.0) << "e^" << x[i] << " = " << y[i];
    }
  }
  RecordProperty("worst_ulp", std::to_string(worst));
  std::cout << "note: " << kernels().instruction_set << " float e^x: " << worst << " ulp" << '\n';
}

TEST_P(EachCopy, DoubleExpIsAccurate) {
  std::vector<double> x;
  std::mt19937_64 random(1);
  for (std::uint64_t high = 0; high < 0xfff; ++high) {
    for (int i = 0; i < 24; ++i) {
      const std::uint64_t bits = (high << 52) | (random() >> 12);
      if ((bits >> 52 & 0x7ff) != 0x7ff) x.push_back(std::bit_cast<double>(bits));
    }
  }
  for (int i = 0; i <= 300000; ++i) x.push_back(-750.0 + 1465.0 * i / 300000.0);
  for (double end : {-708.39641853226408, 709.78271289338397, -745.1}) {
    for (int i = -50; i <= 50; ++i) x.push_back(end + i * 1e-12);
  }
  std::vector<double> y(x.size());
  kernels().lattice.exp_all(x.data(), static_cast<std::int64_t>(x.size()), y.data());
  double worst = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const long double want = std::exp(static_cast<long double>(x[i]));
    if (want > static_cast<long double>(std::numeric_limits<double>::max())) {
      ASSERT_EQ(y[i], kInf) << x[i];
    } else if (want < static_cast<long double>(std::numeric_limits<double>::min())) {
      ASSERT_LE(std::abs(static_cast<long double>(y[i]) - want),
                static_cast<long double>(std::numeric_limits<double>::min()))
          << x[i];
    } else {
      const double error = ulps(y[i], want);
      worst = std::max(worst, error);
      ASSERT_LE(error, 2.0) << "e^" << x[i] << " = " << y[i];
    }
  }
  std::cout << "note: " << kernels().instruction_set << " double e^x: " << worst << " ulp" << '\n';
}

TEST_P(EachCopy, LogIsAccurate) {
  std::vector<double> x;
  std::mt19937_64 random(2);
  for (std::uint64_t high = 1; high < 0x7ff; ++high) {
    for (int i = 0; i < 32; ++i)
      x.push_back(std::bit_cast<double>((high << 52) | (random() >> 12)));
  }
  for (int i = 0; i <= 200000; ++i) x.push_back(1.0 + i / 200000.0);  // what a log-add takes
  for (int i = 0; i <= 60; ++i) x.push_back(1.0 + std::ldexp(1.0, -i));
  for (double near : {std::sqrt(0.5), std::sqrt(2.0)}) {
    for (int i = -50; i <= 50; ++i) x.push_back(near + i * 1e-16);
  }
  std::vector<double> y(x.size());
  kernels().lattice.log_all(x.data(), static_cast<std::int64_t>(x.size()), y.data());
  double worst = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const long double want = std::log(static_cast<long double>(x[i]));
    if (x[i] == 1.0) {
      ASSERT_EQ(y[i], 0.0);
      continue;
    }
    const double error = ulps(y[i], want);
    worst = std::max(worst, error);
    ASSERT_LE(error, 3.0) << "log " << x[i] << " = " << y[i];
  }
  std::cout << "note: " << kernels().instruction_set << " log x: " << worst << " ulp" << '\n';
}

TEST_P(EachCopy, ExpOfSpecialNumbers) {
  for (std::int64_t place = 0; place < 40; ++place) {  // in whole vectors and in the remainder
    for (double special : {kNaN, -kNaN, kInf, -kInf, 0.0, -0.0, 1e-310, -1e-310, 1e300, -1e300}) {
      std::vector<double> x(40, 0.5), y(40);
      x[static_cast<std::size_t>(place)] = special;
      kernels().lattice.exp_all(x.data(), 40, y.data());
      std::vector<float> xf(x.begin(), x.end()), yf(40);
      kernels().lattice.exp_all_float(xf.data(), 40, yf.data());
      const double want = std::exp(special);
      const auto i = static_cast<std::size_t>(place);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(y[i]) && std::isnan(yf[i])) << special << " at " << place;
      } else {
        ASSERT_EQ(y[i], want) << special << " at " << place;
        ASSERT_EQ(yf[i], static_cast<float>(want)) << special << " at " << place;
      }
      for (std::size_t j = 0; j < 40; ++j) {
        if (j != i) {
          ASSERT_NEAR(y[j], std::exp(0.5), 1e-15);
        }
      }
    }
  }
}

TEST_P(EachCopy, LogAddAndPosteriorsOfRows) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal(0.0, 20.0);
  for (std::int64_t count = 0; count <= 70; ++count) {
    const auto n = static_cast<std::size_t>(count);
    std::vector<double> state(n + 1), weight(n + 1), sum(n + 1), beta(n + 1), out(n + 1, 7.0);
    for (auto* v : {&state, &weight, &sum, &beta}) {
      for (double& x : *v) x = random() % 6 == 0 ? -kInf : normal(random);
    }
    const std::vector<double> before = sum;
    kernels().lattice.log_add_arc(state.data(), weight.data(), count, sum.data());
    kernels().lattice.arc_posterior(state.data(), weight.data(), beta.data(), 3.0, count,
                                    out.data());
    for (std::size_t i = 0; i < n; ++i) {
      const double b = state[i] + weight[i];
      const double high = std::max(before[i], b);
      const double low = std::min(before[i], b);
      const double want = low == -kInf ? high : high + std::log1p(std::exp(low - high));
      if (want == -kInf) {
        ASSERT_EQ(sum[i], want);
      } else {
        ASSERT_NEAR(sum[i], want, 4e-16 * std::max(1.0, std::abs(want)));
      }
      const double p = std::exp(state[i] + weight[i] + beta[i] + 3.0);
      ASSERT_NEAR(out[i], p, 1e-15 * p);
    }
    EXPECT_EQ(sum[n], before[n]);
    EXPECT_EQ(out[n], 7.0);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, EachCopy, ::testing::ValuesIn(supported_kernels()),
                         [](const auto& info) { return info.param->instruction_set; });

}  // namespace
}  // namespace transducer::cpu
