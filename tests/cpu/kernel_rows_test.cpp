// SPDX-License-Identifier: Apache-2.0
//
// The loops over rows of logits and of joint units, in every copy of the kernels: at every length
// and alignment around a vector, against plain arithmetic in long double.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "reference/core/request.hpp"
#include "reference/source.hpp"
#include "tests/cpu/supported_kernels.hpp"

namespace transducer::cpu {
namespace {

using Wide = long double;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

template <class Real>
constexpr double kEpsilon = static_cast<double>(std::numeric_limits<Real>::epsilon());

/// A row of normal numbers at an odd place in memory, with a border that must not change.
template <class Real>
class Row {
 public:
  Row(std::int64_t count, std::int64_t shift, unsigned seed, double scale = 3.0)
      : shift_(static_cast<std::size_t>(shift + 16)), count_(static_cast<std::size_t>(count)) {
    memory_.assign(shift_ + count_ + 16, kBorder);
    std::mt19937_64 random(seed + 1000u * static_cast<unsigned>(count));
    std::normal_distribution<double> normal(0.0, scale);
    for (std::size_t i = 0; i < count_; ++i) data()[i] = static_cast<Real>(normal(random));
  }

  Real* data() { return memory_.data() + shift_; }
  Real& operator[](std::int64_t i) { return data()[i]; }
  bool border_is_intact() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if ((i < shift_ || i >= shift_ + count_) && memory_[i] != kBorder) return false;
    }
    return true;
  }

 private:
  static constexpr Real kBorder = Real(-777);
  std::size_t shift_, count_;
  std::vector<Real> memory_;
};

class EachCopyOfRows : public ::testing::TestWithParam<const Kernels*> {
 protected:
  template <class Real>
  const RowKernels<Real>& rows() const {
    return row_kernels<Real>(*GetParam());
  }

  /// body.operator()<Real>(count, shift) for both types, every length and alignment.
  template <class Body>
  static void for_each_row(Body&& body) {
    for (std::int64_t count = 0; count <= 70; ++count) {
      for (std::int64_t shift : {0, 1, 2, 3, 5, 7, 8, 11, 15}) {
        body.template operator()<float>(count, shift);
        body.template operator()<double>(count, shift);
      }
    }
  }
};

template <class Real>
void expect_log_sum(const RowKernels<Real>& kernels, Row<Real>& x, std::int64_t count) {
  Wide largest = -kInf;
  bool bad = false;
  for (std::int64_t i = 0; i < count; ++i) {
    bad = bad || !(static_cast<double>(x[i]) < kInf);
    largest = std::max(largest, static_cast<Wide>(x[i]));
  }
  Wide want = 0;
  for (std::int64_t i = 0; i < count && largest > -kInf; ++i) {
    want += std::exp(static_cast<Wide>(x[i]) - largest);
  }
  double max = kNaN;
  double sum = kNaN;
  kernels.log_sum(x.data(), 0, 1, count, &max, &sum);
  if (bad) {
    ASSERT_TRUE(std::isnan(sum)) << sum << ", count " << count;
    return;
  }
  ASSERT_EQ(max, static_cast<double>(largest)) << "count " << count;
  ASSERT_NEAR(sum, static_cast<double>(want), 4 * kEpsilon<Real> * static_cast<double>(want));
}

TEST_P(EachCopyOfRows, LogSum) {
  for_each_row([&]<class Real>(std::int64_t count, std::int64_t shift) {
    Row<Real> x(count, shift, 1);
    expect_log_sum(rows<Real>(), x, count);
    for (double special : {-kInf, kInf, kNaN}) {
      for (std::int64_t i : {std::int64_t{0}, count / 2, count - 1}) {
        if (i < 0 || i >= count) continue;
        Row<Real> y(count, shift, 2);
        y[i] = static_cast<Real>(special);
        expect_log_sum(rows<Real>(), y, count);
      }
    }
    Row<Real> nothing(count, shift, 3);
    std::fill_n(nothing.data(), count, static_cast<Real>(-kInf));
    expect_log_sum(rows<Real>(), nothing, count);
    if (count > 0) {
      nothing[count - 1] = static_cast<Real>(kNaN);
      expect_log_sum(rows<Real>(), nothing, count);
    }
  });
}

TEST_P(EachCopyOfRows, LogSumOfLongRows) {
  const auto body = [&]<class Real>(std::int64_t count) {
    Row<Real> x(count, 1, 4);
    expect_log_sum(rows<Real>(), x, count);
    for (std::int64_t i = 0; i < count; ++i) x[i] = Real(0.1);  // every rounding error alike
    expect_log_sum(rows<Real>(), x, count);
    x[count / 2] = Real(1e4);
    expect_log_sum(rows<Real>(), x, count);
  };
  for (std::int64_t count : {1023, 1024, 1025, 2048, 2049, 100003}) {
    body.template operator()<float>(count);
    body.template operator()<double>(count);
  }
}

TEST_P(EachCopyOfRows, Softmax) {
  for_each_row([&]<class Real>(std::int64_t count, std::int64_t shift) {
    Row<Real> x(count, shift, 5);
    if (count > 2) x[2] = static_cast<Real>(-kInf);
    Row<Real> stored(count, 15 - shift, 6);
    Row<Real> added(count, 15 - shift, 6);
    Row<Real> before(count, 15 - shift, 6);
    const Real log_z = Real(1.75);
    const Real scale = Real(-0.625);
    rows<Real>().store_softmax(x.data(), count, log_z, scale, nullptr, stored.data());
    rows<Real>().add_softmax(x.data(), count, log_z, scale, added.data());
    for (std::int64_t i = 0; i < count; ++i) {
      const double p =
          static_cast<double>(-0.625L * std::exp(static_cast<Wide>(x[i]) - Wide(1.75)));
      // x - log_z is rounded first: half an ulp of |x| + 2 in the exponent.
      const double relative = kEpsilon<Real> * (6.0 + std::abs(static_cast<double>(x[i])));
      const double allowed = x[i] == static_cast<Real>(-kInf) ? 0.0 : relative * std::abs(p);
      ASSERT_NEAR(static_cast<double>(stored[i]), p, allowed);
      const double old = static_cast<double>(before[i]);
      ASSERT_NEAR(static_cast<double>(added[i]), old + p,
                  allowed + kEpsilon<Real> * std::abs(old + p));
    }
    ASSERT_TRUE(x.border_is_intact() && stored.border_is_intact() && added.border_is_intact());
  });
}

TEST_P(EachCopyOfRows, StreamsCopyEveryBit) {
  for_each_row([&]<class Real>(std::int64_t count, std::int64_t shift) {
    Row<Real> from(count, 3, 7);
    Row<Real> to(count, shift, 8);
    rows<Real>().stream(from.data(), count, to.data());
    for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(to[i], from[i]);
    ASSERT_TRUE(to.border_is_intact());
    rows<Real>().stream_zero(count, to.data());
    for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(to[i], Real(0));
    ASSERT_TRUE(to.border_is_intact());
  });
}

TEST_P(EachCopyOfRows, ActivationsAreTheReferences) {
  for (int number = 0; number <= static_cast<int>(Activation::silu); ++number) {
    const auto activation = static_cast<Activation>(number);
    for_each_row([&]<class Real>(std::int64_t count, std::int64_t shift) {
      Row<Real> e(count, shift, 9, 4.0);
      Row<Real> p(count, 2, 10, 4.0);
      if (count > 3) e[0] = -p[0] * Real(0.5);  // exactly 0: relu'(0) = 0
      if (count > 3) e[1] = Real(100), e[2] = Real(-100), e[3] = Real(-30);
      Row<Real> hidden(count, shift, 11);
      Row<Real> gradient(count, shift, 12);
      Row<Real> before(count, shift, 12);
      const Real factor = Real(0.5);
      rows<Real>().activate(number, e.data(), p.data(), factor, count, hidden.data());
      rows<Real>().activate_backward(number, e.data(), p.data(), factor, count, gradient.data());
      for (std::int64_t i = 0; i < count; ++i) {
        const double x = static_cast<double>(static_cast<Real>(e[i] + factor * p[i]));
        const double y = reference::activate(activation, x);
        const double slope = reference::activation_derivative(activation, x);
        // Errors are absolute, at the scale of 1 and of x, not of a tail that is nearly 0.
        const double unit = kEpsilon<Real> * (4.0 + 2.0 * std::abs(x));
        ASSERT_NEAR(static_cast<double>(hidden[i]), y, unit)
            << "activation " << number << " of " << x;
        const double g = static_cast<double>(before[i]);
        ASSERT_NEAR(static_cast<double>(gradient[i]), g * slope, unit * std::abs(g))
            << "derivative of activation " << number << " at " << x;
      }
      ASSERT_TRUE(hidden.border_is_intact() && gradient.border_is_intact());
    });
  }
}

TEST_P(EachCopyOfRows, ActivationsKeepNaN) {
  for (int number = 0; number <= static_cast<int>(Activation::silu); ++number) {
    for (std::int64_t i = 0; i < 19; ++i) {
      Row<float> e(19, 1, 13), p(19, 0, 14), hidden(19, 0, 15), gradient(19, 0, 16);
      e[i] = static_cast<float>(kNaN);
      rows<float>().activate(number, e.data(), p.data(), 1.0f, 19, hidden.data());
      ASSERT_TRUE(std::isnan(hidden[i])) << "activation " << number;
      ASSERT_FALSE(std::isnan(hidden[(i + 1) % 19]));
    }
  }
}

template <class Real>
void expect_product(const RowKernels<Real>& kernels, bool transpose_a, bool transpose_b,
                    bool accumulate, std::int64_t m, std::int64_t n, std::int64_t k) {
  const std::int64_t a_stride = (transpose_a ? m : k) + 3;
  const std::int64_t b_stride = (transpose_b ? k : n) + 5;
  const std::int64_t c_stride = n + 2;
  Row<Real> a((transpose_a ? k : m) * a_stride, 1, 17, 1.0);
  Row<Real> b((transpose_b ? n : k) * b_stride, 2, 18, 1.0);
  Row<Real> c(m * c_stride, 3, 19, 1.0);
  Row<Real> before(m * c_stride, 3, 19, 1.0);
  kernels.multiply(transpose_a, transpose_b, accumulate, m, n, k, a.data(), a_stride, b.data(),
                   b_stride, c.data(), c_stride);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < c_stride; ++j) {
      const Real old = before[i * c_stride + j];
      if (j >= n) {
        ASSERT_EQ(c[i * c_stride + j], old) << "between rows";
        continue;
      }
      Wide want = accumulate ? static_cast<Wide>(old) : 0;
      Wide size = std::abs(want);
      for (std::int64_t l = 0; l < k; ++l) {
        const Wide term = static_cast<Wide>(a[transpose_a ? l * a_stride + i : i * a_stride + l]) *
                          static_cast<Wide>(b[transpose_b ? j * b_stride + l : l * b_stride + j]);
        want += term;
        size += std::abs(term);
      }
      ASSERT_NEAR(static_cast<double>(c[i * c_stride + j]), static_cast<double>(want),
                  kEpsilon<Real> * static_cast<double>(size) * static_cast<double>(k + 1));
    }
  }
  ASSERT_TRUE(c.border_is_intact());
}

TEST_P(EachCopyOfRows, ProductsEqualThreePlainLoops) {
  for (int form = 0; form < 8; ++form) {
    for (std::int64_t size : {1, 2, 7, 16, 33}) {
      for (std::int64_t k : {std::int64_t{1}, size, std::int64_t{65}}) {
        expect_product(rows<float>(), form & 1, form & 2, form & 4, size, size + 16, k);
        expect_product(rows<double>(), form & 1, form & 2, form & 4, size, size + 16, k);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, EachCopyOfRows, ::testing::ValuesIn(supported_kernels()),
                         [](const auto& info) { return info.param->instruction_set; });

}  // namespace
}  // namespace transducer::cpu
