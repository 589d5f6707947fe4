// SPDX-License-Identifier: Apache-2.0
//
// Non-negative numbers for lattices, in three arithmetics with the same verbs. A state in memory takes 8 bytes.
//
//   MantissaExponent   m 2^e with float32 m and int32 e, an exponent of its own for each node: no digit is lost
//                      however long the lattice (a float32 log-space recursion loses 4e-3 at T = 1500, U = 400)
//   LogNumber<false>   log of the value, in double
//   LogNumber<true>    the same where a sum is the larger term: the max semiring
//
// Arc weights come as logarithms, -inf where there is no arc; a logarithm beyond +-2^20 / log2(e) counts as that.
// Poison never gets here.
#pragma once

#include <cmath>
#include <cstdint>

namespace transducer::cuda {

inline constexpr int kZeroExponent = -(1 << 30);  ///< of 0: loses every alignment of exponents
inline constexpr float kLargestLog = 726817.0f;

/// 2^d for d <= 0, 0 from -127 on.
__device__ __forceinline__ float pow2_nonpositive(int d) {
  return __int_as_float((max(d, -127) + 127) << 23);
}
__device__ __forceinline__ float pow2_clamped(int d) {
  return __int_as_float((min(max(d, -127), 127) + 127) << 23);
}
__device__ __forceinline__ float exp2_approximate(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

struct Scaled {
  float m;
  int e;
};

/// e^w = p 2^k with p in [0.70, 1.42]. A Cody-Waite split: the fraction is exact in float32. For w = -inf p is 0
/// and k so low that the product loses every alignment of exponents.
__device__ __forceinline__ Scaled exp_scaled(float w) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr float kLog2e = 1.44269502162933349609375f;
  constexpr float kLog2eRest = 1.925963033500617e-8f;
  const float bounded = fminf(fmaxf(w, -kLargestLog), kLargestLog);
  const float rounded = fmaf(bounded, kLog2e, kRound);
  float fraction = fmaf(bounded, kLog2e, kRound - rounded);
  fraction = fmaf(bounded, kLog2eRest, fraction);
  if (w == -INFINITY) return {0.0f, -(1 << 23)};
  return {exp2_approximate(fraction), __float_as_int(rounded) - __float_as_int(kRound)};
}

struct MantissaExponent {
  using Value = Scaled;
  using State = float2;

  static __device__ Value zero() { return {0.0f, kZeroExponent}; }
  static __device__ bool is_zero(Value a) { return a.m == 0.0f; }
  /// m back to [1, 2).
  static __device__ Value normalised(Value a) {
    const int exponent = (__float_as_int(a.m) >> 23) - 127;
    if (a.m == 0.0f) return zero();
    return {a.m * __int_as_float((127 - exponent) << 23), max(a.e + exponent, kZeroExponent)};
  }
  static __device__ Value from_log(double x) {
    if (x == -INFINITY) return zero();
    const double scaled = fmin(fmax(x, -double(kLargestLog)), double(kLargestLog)) * M_LOG2E;
    const double whole = rint(scaled);
    return normalised({static_cast<float>(exp2(scaled - whole)), static_cast<int>(whole)});
  }
  static __device__ Value times(Value a, float log_weight) {
    const Scaled w = exp_scaled(log_weight);
    return {a.m * w.m, a.e + w.e};
  }
  static __device__ Value product(Value a, Value b) { return normalised({a.m * b.m, a.e + b.e}); }
  static __device__ Value plus(Value a, Value b) {
    const int e = max(a.e, b.e);
    return normalised({fmaf(a.m, pow2_nonpositive(a.e - e), b.m * pow2_nonpositive(b.e - e)), e});
  }
  /// a w b / total, at most about 1.
  static __device__ float share(Value a, float log_weight, Value b, Value total) {
    const Scaled w = exp_scaled(log_weight);
    return a.m * w.m * b.m / total.m * pow2_clamped(a.e + w.e + b.e - total.e);
  }
  static __device__ double log_of(Value a) {
    return a.m == 0.0f ? -INFINITY : log(static_cast<double>(a.m)) + M_LN2 * a.e;
  }
  static __device__ State pack(Value a) { return make_float2(a.m, __int_as_float(a.e)); }
  static __device__ Value unpack(State s) { return {s.x, __float_as_int(s.y)}; }
};

template <bool kMax>
struct LogNumber {
  using Value = double;
  using State = double;

  static __device__ Value zero() { return -INFINITY; }
  static __device__ bool is_zero(Value a) { return a == -INFINITY; }
  static __device__ Value from_log(double x) { return x; }
  static __device__ Value times(Value a, double log_weight) { return a + log_weight; }
  static __device__ Value product(Value a, Value b) { return a + b; }
  static __device__ Value plus(Value a, Value b) {
    const double high = fmax(a, b);
    const double low = fmin(a, b);
    if (kMax || low == -INFINITY) return high;
    return high + log1p(exp(low - high));
  }
  static __device__ double share(Value a, double log_weight, Value b, Value total) {
    return exp(a + log_weight + b - total);
  }
  static __device__ double log_of(Value a) { return a; }
  static __device__ State pack(Value a) { return a; }
  static __device__ Value unpack(State s) { return s; }
};

}  // namespace transducer::cuda
