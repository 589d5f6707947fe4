// SPDX-License-Identifier: Apache-2.0
//
// Elementwise work on rows of lattice nodes, in double.
#pragma once

#include <cmath>
#include <limits>

#include "cpu/kernels/vector.hpp"

namespace transducer::cpu::rows {

constexpr double kNoPath = -std::numeric_limits<double>::infinity();

/// Calls body(i, lanes) over `count` elements.
template <class Body>
inline void for_each_vector(int64_t count, Body body) {
  int64_t i = 0;
  for (; i + kLanes<double> <= count; i += kLanes<double>) body(i, int64_t{kLanes<double>});
  if (i < count) body(i, count - i);
}

inline DoubleVector load_lanes(const double* p, int64_t lanes) {
  return lanes == kLanes<double> ? load(p) : load_partial(p, lanes, 0.0);
}

inline void store_lanes(double* p, DoubleVector v, int64_t lanes) {
  lanes == kLanes<double> ? store(p, v) : store_partial(p, v, lanes);
}

/// Whether every lane of a comparison is true.
inline bool all(Int64Vector mask) {
#if defined(__AVX512F__)
  return _mm512_movepi64_mask((__m512i)mask) == 0xff;
#else
  bool every = true;
  for (int lane = 0; lane < kLanes<double>; ++lane) every = every && mask[lane] != 0;
  return every;
#endif
}

inline void join(const double* max, const double* sum, int64_t count, double* out) {
  for_each_vector(count, [&](int64_t i, int64_t lanes) {
    const DoubleVector s = load_lanes(sum + i, lanes);
    const DoubleVector value = load_lanes(max + i, lanes) + log(s);
    const DoubleVector none = s == 0.0 ? DoubleVector{} + kNoPath : s;
    store_lanes(out + i, s > 0.0 ? value : none, lanes);
  });
}

inline void log_add_arc(const double* state, const double* weight, int64_t count, double* sum) {
  for_each_vector(count, [&](int64_t i, int64_t lanes) {
    const DoubleVector a = load_lanes(sum + i, lanes);
    const DoubleVector b = load_lanes(state + i, lanes) + load_lanes(weight + i, lanes);
    const DoubleVector high = a > b ? a : b;
    const DoubleVector low = a > b ? b : a;
    // The first arc into a row of nodes; and nodes that nothing reaches.
    if (all(low == kNoPath)) return store_lanes(sum + i, high, lanes);
    const DoubleVector added = high + log(1.0 + exp(low - high));
    // -inf adds nothing, and -inf - -inf would be NaN.
    store_lanes(sum + i, low == kNoPath ? high : added, lanes);
  });
}

inline void arc_posterior(const double* alpha, const double* weight, const double* beta,
                          double cost, int64_t count, double* posterior) {
  for_each_vector(count, [&](int64_t i, int64_t lanes) {
    const DoubleVector sum = load_lanes(alpha + i, lanes) + load_lanes(weight + i, lanes) +
                             load_lanes(beta + i, lanes) + cost;
    store_lanes(posterior + i, exp(sum), lanes);
  });
}

/// Nodes that one segment of a chain holds. Mantissas at most double at each step, so that many stay far
/// from overflow.
constexpr int64_t kSegment = 512;
constexpr int64_t kVeryLow = int64_t{-1} << 40;

/// Splits e^x into a mantissa and an exponent; -inf is 0 with a very low exponent. Returns false if some
/// x is too large to split.
inline bool split(const double* x, int64_t count, double* mantissa, int64_t* exponent) {
  bool fits = true;
  for_each_vector(count, [&](int64_t i, int64_t lanes) {
    const DoubleVector v =
        lanes == kLanes<double> ? load(x + i) : load_partial(x + i, lanes, kNoPath);
    const auto none = v == kNoPath;
    const DoubleVector finite = none ? DoubleVector{} : v;
    Int64Vector k;
    const DoubleVector p = exp_parts(finite, &k);
    const auto large = (finite > 1e9) | (finite < -1e9);
    for (int lane = 0; lane < kLanes<double>; ++lane) fits = fits && large[lane] == 0;
    const DoubleVector m = none ? DoubleVector{} : p;
    const Int64Vector e = none ? Int64Vector{} + kVeryLow : k;
    std::memcpy(mantissa + i, &m, sizeof m);
    std::memcpy(exponent + i, &e, sizeof e);
  });
  return fits;
}

/// The chain of one segment: row[i] = log(e^row[i] + e^(row[i - step] + weight)), where the weight of the
/// step into i is weight[i - 1] forwards and weight[i] backwards. In mantissas and exponents: the exponents
/// are a chain of additions and maxima, the mantissas one of multiply-adds, and the rest is vectors.
inline bool chain_segment(double* row, const double* weight, int64_t count, bool backwards) {
  constexpr int64_t kSpace = kSegment + kLanes<double>;
  double base[kSpace], factor[kSpace];
  int64_t base_exponent[kSpace], factor_exponent[kSpace], exponent[kSpace], shift[kSpace];
  if (!split(row, count, base, base_exponent)) return false;
  if (!split(weight, count - 1, factor, factor_exponent)) return false;
  const int64_t first = backwards ? count - 1 : 0;
  const int64_t step = backwards ? -1 : 1;
  const int64_t into = backwards ? 0 : -1;  // factor[i + into] leads into node i
  exponent[first] = base_exponent[first];
  shift[first] = kVeryLow;
  for (int64_t n = 1; n < count; ++n) {
    const int64_t i = first + n * step;
    const int64_t arriving = exponent[i - step] + factor_exponent[i + into];
    exponent[i] = base_exponent[i] > arriving ? base_exponent[i] : arriving;
    shift[i] = arriving - exponent[i];
  }
  double incoming[kSpace];
  incoming[first] = 0.0;
  for (int64_t n = 1; n < count; ++n) incoming[first + n * step] = factor[first + n * step + into];
  for_each_vector(count, [&](int64_t i, int64_t) {
    Int64Vector e, b, s;
    std::memcpy(&e, exponent + i, sizeof e);
    std::memcpy(&b, base_exponent + i, sizeof b);
    std::memcpy(&s, shift + i, sizeof s);
    store(base + i, load(base + i) * power_of_two(b - e));
    store(incoming + i, load(incoming + i) * power_of_two(s));
  });
  double mantissa = base[first];
  for (int64_t n = 1; n < count; ++n) {
    const int64_t i = first + n * step;
    mantissa = base[i] + mantissa * incoming[i];
    base[i] = mantissa;
  }
  for_each_vector(count, [&](int64_t i, int64_t lanes) {
    const DoubleVector m = load(base + i);
    Int64Vector e;
    std::memcpy(&e, exponent + i, sizeof e);
    const auto none = m == 0.0;
    const DoubleVector n = to_double(none ? Int64Vector{} : e);
    const DoubleVector value = log(none ? DoubleVector{} + 1.0 : m) +
                               n * 1.90821492927058770002e-10 + n * 6.93147180369123816490e-01;
    store_lanes(row + i, none ? DoubleVector{} + kNoPath : value, lanes);
  });
  return true;
}

/// Plain form of the same, for weights beyond 1e9.
inline void chain_plainly(double* row, const double* weight, int64_t count, bool backwards) {
  for (int64_t n = 1; n < count; ++n) {
    const int64_t i = backwards ? count - 1 - n : n;
    const double a = row[i];
    const double b = backwards ? row[i + 1] + weight[i] : row[i - 1] + weight[i - 1];
    const double high = a > b ? a : b;
    const double low = a > b ? b : a;
    row[i] = low == kNoPath ? high : high + std::log1p(std::exp(low - high));
  }
}

inline void log_chain(double* row, const double* weight, int64_t count, bool backwards) {
  // Segments share their end nodes: the last of one is the first of the next.
  for (int64_t done = 0; done < count - 1;) {
    const int64_t nodes = count - done < kSegment ? count - done : kSegment;
    const int64_t begin = backwards ? count - done - nodes : done;
    if (!chain_segment(row + begin, weight + begin, nodes, backwards)) {
      chain_plainly(row + begin, weight + begin, nodes, backwards);
    }
    done += nodes - 1;
  }
}

inline void exp_all(const double* x, int64_t count, double* out) {
  for_each_vector(count, [&](int64_t i, int64_t lanes) {
    store_lanes(out + i, exp(load_lanes(x + i, lanes)), lanes);
  });
}

inline void log_all(const double* x, int64_t count, double* out) {
  for_each_vector(count, [&](int64_t i, int64_t lanes) {
    store_lanes(out + i, log(load_lanes(x + i, lanes)), lanes);
  });
}

inline void exp_all_float(const float* x, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + kLanes<float> <= count; i += kLanes<float>) store<float>(out + i, exp(load(x + i)));
  if (i < count)
    store_partial<float>(out + i, exp(load_partial(x + i, count - i, 0.0f)), count - i);
}

}  // namespace transducer::cpu::rows
