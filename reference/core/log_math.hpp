// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic on logarithms of non-negative numbers; log 0 is -infinity.
//
//   log_add(a, b)      = log(e^a + e^b)
//   OnlineLogSumExp    log of a sum of e^x over a stream of x, one pass, no overflow; keeps the
//                      running maximum m and s = sum e^(x - m)  (docs/math.md#log-arithmetic)
//
// NaN is kept. Host and device.
#pragma once

#include <cmath>
#include <limits>

#include "reference/core/macros.hpp"

namespace transducer {

template <class Real>
inline constexpr Real kLogZero = -std::numeric_limits<Real>::infinity();

/// log(e^a + e^b); -inf is the neutral element.
template <class Real>
TX_HD inline Real log_add(Real a, Real b) {
  const Real high = a > b ? a : b;
  const Real low = a > b ? b : a;
  if (low == -std::numeric_limits<Real>::infinity()) return high;
  return high + std::log1p(std::exp(low - high));
}

/// log(1 + e^x) without overflow: the log-normaliser of one Bernoulli logit.
template <class Real>
TX_HD inline Real softplus(Real x) {
  return x > Real(0) ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

/// 1 / (1 + e^-x): the derivative of softplus.
template <class Real>
TX_HD inline Real sigmoid(Real x) {
  if (x >= Real(0)) return Real(1) / (Real(1) + std::exp(-x));
  const Real e = std::exp(x);
  return e / (Real(1) + e);
}

/// One-pass log-sum-exp with four verbs.
template <class Real>
struct OnlineLogSumExp {
  Real max = -std::numeric_limits<Real>::infinity();
  Real sum = Real(0);

  /// Takes one more term e^x into the sum.
  TX_HD void observe(Real x) {
    if (x > max) {
      sum = sum * std::exp(max - x) + Real(1);
      max = x;
    } else if (x != -std::numeric_limits<Real>::infinity()) {
      sum += std::exp(x - max);  // also the way in for NaN
    }
  }

  /// Takes the terms of another stream into the sum.
  TX_HD void merge(const OnlineLogSumExp& other) {
    if (other.max > max) {
      sum = sum * std::exp(max - other.max) + other.sum;
      max = other.max;
    } else if (other.sum != Real(0)) {
      sum += other.sum * std::exp(other.max - max);
    }
  }

  /// log of the sum; -inf if nothing but -inf was observed.
  TX_HD Real log_z() const { return max + std::log(sum); }

  /// e^x divided by the sum.
  TX_HD Real probability(Real x) const { return std::exp(x - max) / sum; }
};

}  // namespace transducer
