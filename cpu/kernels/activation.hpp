// SPDX-License-Identifier: Apache-2.0
//
// The joint network's activation and its derivative over a row of H units, act(e + f p). Numbers of the
// activations: transducer::Activation.
#pragma once

#include <cmath>

#include "cpu/kernels/vector.hpp"

namespace transducer::cpu::rows {

enum ActivationNumber {
  act_identity,
  act_relu,
  act_leaky_relu,
  act_tanh,
  act_sigmoid,
  act_gelu,
  act_silu
};

template <class Real>
inline Vector<Real> absolute(Vector<Real> x) {
  return x < Real(0) ? -x : x;
}

/// tanh |x| = (1 - t) / (1 + t) with t = e^(-2 |x|); absolute error 2 ulp of 1. NaN stays NaN.
template <class Real>
inline Vector<Real> tanh(Vector<Real> x) {
  const Vector<Real> t = exp(Real(-2) * absolute<Real>(x));
  const Vector<Real> y = (Real(1) - t) / (Real(1) + t);
  return x < Real(0) ? -y : y;
}

template <class Real>
inline Vector<Real> sigmoid(Vector<Real> x) {
  const Vector<Real> t = exp(-absolute<Real>(x));
  const Vector<Real> y = Real(1) / (Real(1) + t);
  return x < Real(0) ? t * y : y;
}

/// x Phi(x) and its derivative Phi(x) + x phi(x), lane by lane: erf has no vector form here.
template <class Real>
inline Vector<Real> gelu(Vector<Real> x, bool derivative) {
  constexpr Real kSqrtHalf = Real(0.70710678118654752440);
  constexpr Real kDensity = Real(0.39894228040143267794);  // 1 / sqrt(2 pi)
  Vector<Real> y = x;
  for (int i = 0; i < kLanes<Real>; ++i) {
    const Real cdf = Real(0.5) * std::erfc(-x[i] * kSqrtHalf);
    y[i] = derivative ? cdf + x[i] * kDensity * std::exp(Real(-0.5) * x[i] * x[i]) : x[i] * cdf;
  }
  return y;
}

template <class Real, int Number>
inline Vector<Real> act(Vector<Real> x) {
  constexpr Real kSlope = Real(0.01);
  if constexpr (Number == act_relu) return x < Real(0) ? Vector<Real>{} : x;
  if constexpr (Number == act_leaky_relu) return x < Real(0) ? kSlope * x : x;
  if constexpr (Number == act_tanh) return tanh<Real>(x);
  if constexpr (Number == act_sigmoid) return sigmoid<Real>(x);
  if constexpr (Number == act_gelu) return gelu<Real>(x, false);
  if constexpr (Number == act_silu) return x * sigmoid<Real>(x);
  return x;
}

template <class Real, int Number>
inline Vector<Real> act_derivative(Vector<Real> x) {
  constexpr Real kSlope = Real(0.01);
  const Vector<Real> one = Vector<Real>{} + Real(1);
  if constexpr (Number == act_relu) return x > Real(0) ? one : Vector<Real>{};
  if constexpr (Number == act_leaky_relu) return x > Real(0) ? one : kSlope * one;
  if constexpr (Number == act_tanh) {
    const Vector<Real> y = tanh<Real>(x);
    return one - y * y;
  }
  if constexpr (Number == act_sigmoid || Number == act_silu) {
    const Vector<Real> y = sigmoid<Real>(x);
    const Vector<Real> slope = y * (one - y);
    return Number == act_sigmoid ? slope : y + x * slope;
  }
  if constexpr (Number == act_gelu) return gelu<Real>(x, true);
  return one;
}

/// Applies body(sum, i, count) to vectors of e + f p; `count` is below the lanes only at the end.
template <class Real, class Body>
inline void for_each_sum(const Real* encoder, const Real* predictor, Real factor, int64_t count,
                         Body body) {
  int64_t i = 0;
  for (; i + kLanes<Real> <= count; i += kLanes<Real>) {
    body(load(encoder + i) + factor * load(predictor + i), i, int64_t{kLanes<Real>});
  }
  if (i == count) return;
  body(load_partial(encoder + i, count - i, Real(0)) +
           factor * load_partial(predictor + i, count - i, Real(0)),
       i, count - i);
}

template <class Real, int Number>
void activate_as(const Real* encoder, const Real* predictor, Real factor, int64_t count,
                 Real* hidden) {
  for_each_sum(encoder, predictor, factor, count, [&](Vector<Real> x, int64_t i, int64_t lanes) {
    store_partial<Real>(hidden + i, act<Real, Number>(x), lanes);
  });
}

template <class Real, int Number>
void activate_backward_as(const Real* encoder, const Real* predictor, Real factor, int64_t count,
                          Real* gradient) {
  for_each_sum(encoder, predictor, factor, count, [&](Vector<Real> x, int64_t i, int64_t lanes) {
    const Vector<Real> g = load_partial(gradient + i, lanes, Real(0));
    store_partial<Real>(gradient + i, g * act_derivative<Real, Number>(x), lanes);
  });
}

template <class Real, class Call>
inline void with_activation(int activation, Call call) {
  switch (activation) {
    case act_relu:
      return call.template operator()<act_relu>();
    case act_leaky_relu:
      return call.template operator()<act_leaky_relu>();
    case act_tanh:
      return call.template operator()<act_tanh>();
    case act_sigmoid:
      return call.template operator()<act_sigmoid>();
    case act_gelu:
      return call.template operator()<act_gelu>();
    case act_silu:
      return call.template operator()<act_silu>();
    default:
      return call.template operator()<act_identity>();
  }
}

template <class Real>
void activate(int activation, const Real* encoder, const Real* predictor, Real factor,
              int64_t count, Real* hidden) {
  with_activation<Real>(activation, [&]<int Number>() {
    activate_as<Real, Number>(encoder, predictor, factor, count, hidden);
  });
}

template <class Real>
void activate_backward(int activation, const Real* encoder, const Real* predictor, Real factor,
                       int64_t count, Real* gradient) {
  with_activation<Real>(activation, [&]<int Number>() {
    activate_backward_as<Real, Number>(encoder, predictor, factor, count, gradient);
  });
}

}  // namespace transducer::cpu::rows
