// SPDX-License-Identifier: Apache-2.0
//
// Short vectors for one instruction set, by the compiler's vector extension (GCC and Clang, any target),
// and e^x and log x on them. Each copy of the kernels keeps its own: isolate.sh makes their symbols local.
//
//   e^x   float: x = n log 2 + r, |r| <= log 2 / 2 in two parts, a polynomial of degree 6; error at most
//         3 ulp; results below the smallest normal number are 0
//         double: degree 12, at most 2 ulp
//   log x double, x > 0: 2 atanh of a rational argument, at most 3 ulp
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace transducer::cpu::rows {

using std::int64_t;

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

typedef float FloatVector __attribute__((vector_size(kVectorBytes)));
typedef double DoubleVector __attribute__((vector_size(kVectorBytes)));
typedef std::int32_t Int32Vector __attribute__((vector_size(kVectorBytes)));
typedef std::int64_t Int64Vector __attribute__((vector_size(kVectorBytes)));
typedef std::uint64_t UInt64Vector __attribute__((vector_size(kVectorBytes)));

template <class Real>
struct VectorOf;
template <>
struct VectorOf<float> {
  using Type = FloatVector;
  using Int = Int32Vector;
};
template <>
struct VectorOf<double> {
  using Type = DoubleVector;
  using Int = Int64Vector;
};

template <class Real>
using Vector = typename VectorOf<Real>::Type;
template <class Real>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(Real));

template <class Real>
inline Vector<Real> load(const Real* p) {
  Vector<Real> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <class Real>
inline void store(Real* p, Vector<Real> v) {
  std::memcpy(p, &v, sizeof v);
}

/// The first `count` lanes of memory, `fill` in the rest; nothing beyond them is touched.
template <class Real>
inline Vector<Real> load_partial(const Real* p, std::int64_t count, Real fill) {
#if defined(__AVX512F__)
  const auto lanes = (1u << count) - 1u;
  if constexpr (sizeof(Real) == sizeof(float)) {
    return (Vector<Real>)_mm512_mask_loadu_ps(_mm512_set1_ps(fill), (__mmask16)lanes, p);
  } else {
    return (Vector<Real>)_mm512_mask_loadu_pd(_mm512_set1_pd(fill), (__mmask8)lanes, p);
  }
#else
  Vector<Real> v = Vector<Real>{} + fill;
  for (std::int64_t i = 0; i < count; ++i) v[i] = p[i];
  return v;
#endif
}

template <class Real>
inline void store_partial(Real* p, Vector<Real> v, std::int64_t count) {
#if defined(__AVX512F__)
  const auto lanes = (1u << count) - 1u;
  if constexpr (sizeof(Real) == sizeof(float)) {
    _mm512_mask_storeu_ps(p, (__mmask16)lanes, (__m512)v);
  } else {
    _mm512_mask_storeu_pd(p, (__mmask8)lanes, (__m512d)v);
  }
#else
  for (std::int64_t i = 0; i < count; ++i) p[i] = v[i];
#endif
}

template <class Real>
inline Vector<Real> maximum(Vector<Real> a, Vector<Real> b) {
  return a > b ? a : b;
}

/// The largest lane; no lane may be NaN.
template <class Real>
inline Real largest_lane(Vector<Real> v) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Real) == sizeof(float)) {
    return _mm512_reduce_max_ps((__m512)v);
  } else {
    return _mm512_reduce_max_pd((__m512d)v);
  }
#else
  Real lanes[kLanes<Real>];
  store(lanes, v);
  for (int half = kLanes<Real> / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    }
  }
  return lanes[0];
#endif
}

/// The sum of the lanes, in double.
template <class Real>
inline double lane_sum(Vector<Real> v) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Real) == sizeof(float)) {
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v, 1));
    return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
  } else {
    return _mm512_reduce_add_pd((__m512d)v);
  }
#else
  double lanes[kLanes<Real>];
  for (int i = 0; i < kLanes<Real>; ++i) lanes[i] = static_cast<double>(v[i]);
  for (int half = kLanes<Real> / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
#endif
}

inline FloatVector reinterpret_float(Int32Vector v) { return (FloatVector)v; }
inline DoubleVector reinterpret_double(Int64Vector v) { return (DoubleVector)v; }

#if defined(__AVX512F__)

/// e^x. NaN stays NaN; -inf gives 0; above the range, +inf. The processor's own scaling by powers of two
/// replaces the bit arithmetic of the general form below and its two comparisons.
inline FloatVector exp(FloatVector x) {
  // The bound comes first, so that NaN, the second operand, is what max and min return.
  const __m512 low = _mm512_max_ps(_mm512_set1_ps(-105.0f), (__m512)x);
  const __m512 v = _mm512_min_ps(_mm512_set1_ps(89.0f), low);
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(v, _mm512_set1_ps(1.44269504088896341f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), v);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(1.3981999507e-3f), _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return (FloatVector)_mm512_scalef_ps(p, n);
}

#else

/// e^x. NaN stays NaN; -inf gives 0; above the range, +inf.
inline FloatVector exp(FloatVector x) {
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;  // few bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const FloatVector n = (x * kLog2E + kMagic) - kMagic;
  FloatVector r = x - n * kLn2High;
  r = r - n * kLn2Low;
  FloatVector p = r * 1.3981999507e-3f + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors, so that n = 128 and n = -126 work.
  const Int32Vector k = __builtin_convertvector(n, Int32Vector);
  const Int32Vector half = k >> 1;
  p = p * reinterpret_float((half + 127) << 23) * reinterpret_float((k - half + 127) << 23);
  p = x < -87.33654f ? FloatVector{} : p;
  const float infinity = std::numeric_limits<float>::infinity();
  p = x > 88.72283f ? FloatVector{} + infinity : p;
  return x == x ? p : x;
}

#endif

/// e^x = p 2^k for finite |x| < 2^40: p in [0.7, 1.42], k as an integer.
inline DoubleVector exp_parts(DoubleVector x, Int64Vector* k) {
  constexpr double kLog2E = 1.44269504088896340736;
  constexpr double kLn2High = 6.93147180369123816490e-01;
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const DoubleVector shifted = x * kLog2E + kMagic;
  const DoubleVector n = shifted - kMagic;
  DoubleVector r = x - n * kLn2High;
  r = r - n * kLn2Low;
  DoubleVector p = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * (r * r) + r + 1.0;
  // The integer sits in the low bits of `shifted`; unsigned, because NaN may wrap around.
  *k = (Int64Vector)((UInt64Vector)shifted - (UInt64Vector)(DoubleVector{} + kMagic));
  return p;
}

/// 2^k, or 0 for k below -1022; k at most 1023.
inline DoubleVector power_of_two(Int64Vector k) {
  const DoubleVector power = reinterpret_double((k + 1023) << 52);
  return k < -1022 ? DoubleVector{} : power;
}

/// An integer below 2^51 as a double, through the low bits of 1.5 * 2^52: AVX2 has no such conversion.
inline DoubleVector to_double(Int64Vector n) {
  const DoubleVector magic = DoubleVector{} + 6755399441055744.0;
  return (DoubleVector)((Int64Vector)magic + n) - magic;
}

inline DoubleVector exp(DoubleVector x) {
  Int64Vector k;
  DoubleVector p = exp_parts(x, &k);
  const Int64Vector half = k >> 1;  // 2^k in two factors, so that the ends of the range work
  p = p * reinterpret_double((half + 1023) << 52) * reinterpret_double((k - half + 1023) << 52);
  p = x < -708.39641853226408 ? DoubleVector{} : p;
  p = x > 709.78271289338397 ? DoubleVector{} + std::numeric_limits<double>::infinity() : p;
  return x == x ? p : x;
}

/// log x for x in [1, 2]: what log_add needs. Elsewhere positive and normal.
inline DoubleVector log(DoubleVector x) {
  // x = 2^n m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1).
  const Int64Vector bits = (Int64Vector)x;
  const Int64Vector n = ((bits - 0x3fe6a09e667f3bcdLL) >> 52);
  const DoubleVector m = (DoubleVector)(bits - (n << 52));
  const DoubleVector s = (m - 1.0) / (m + 1.0);
  const DoubleVector z = s * s;
  DoubleVector p = z * (1.0 / 23.0) + 1.0 / 21.0;
  p = p * z + 1.0 / 19.0;
  p = p * z + 1.0 / 17.0;
  p = p * z + 1.0 / 15.0;
  p = p * z + 1.0 / 13.0;
  p = p * z + 1.0 / 11.0;
  p = p * z + 1.0 / 9.0;
  p = p * z + 1.0 / 7.0;
  p = p * z + 1.0 / 5.0;
  p = p * z + 1.0 / 3.0;
  const DoubleVector log_m = 2.0 * s + 2.0 * s * z * p;
  const DoubleVector exponent = to_double(n);
  return log_m + exponent * 1.90821492927058770002e-10 + exponent * 6.93147180369123816490e-01;
}

}  // namespace transducer::cpu::rows
