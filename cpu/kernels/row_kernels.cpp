// SPDX-License-Identifier: Apache-2.0
//
// The loops over rows, compiled once for each instruction set. See cpu/kernels.hpp for what they compute
// and vector.hpp for the error bounds of e^x. Bytes: each reads its row once, from the first-level cache
// where a row is passed over twice.
#include <cmath>
#include <cstdint>
#include <limits>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "cpu/kernels.hpp"
#include "cpu/kernels/activation.hpp"
#include "cpu/kernels/instruction_set.hpp"
#include "cpu/kernels/lattice_rows.hpp"
#include "cpu/kernels/multiply.hpp"
#include "cpu/kernels/vector.hpp"

namespace {

// NOLINTNEXTLINE(google-build-using-namespace): all of it is used here
using namespace transducer::cpu::rows;

template <class Real>
constexpr Real kMinusInfinity = -std::numeric_limits<Real>::infinity();

/// Fetches ahead of a pass over memory: the processor's own prefetching starts anew at each page, which for
/// many vocabularies means at each row.
inline void fetch(const void* p) { __builtin_prefetch(p, 0, 2); }
constexpr int64_t kFetchAhead = 4096;  // bytes

/// `Count` vectors from x; -inf beyond `columns`.
template <int Count, class Real>
inline void load_columns(const Real* x, int64_t columns, Vector<Real> (&v)[Count]) {
  for (int j = 0; j < Count; ++j) {
    const int64_t left = columns - j * kLanes<Real>;
    v[j] = left >= kLanes<Real> ? load(x + j * kLanes<Real>)
           : left > 0           ? load_partial(x + j * kLanes<Real>, left, kMinusInfinity<Real>)
                                : Vector<Real>{} + kMinusInfinity<Real>;
  }
}

template <int Count, class Real>
inline Vector<Real> largest(const Vector<Real> (&v)[Count], Vector<Real> high) {
  Vector<Real> best = v[0];
  for (int j = 1; j < Count; ++j) best = maximum<Real>(v[j], best);
  return maximum<Real>(best, high);  // if an operand is NaN, the second: `high` never is
}

template <int Count, class Real>
inline Vector<Real> sum_of_exp(const Vector<Real> (&v)[Count], Vector<Real> high) {
  Vector<Real> even = {}, odd = {};
  for (int j = 0; j < Count; j += 2) even += exp(v[j] - high);
  for (int j = 1; j < Count; j += 2) odd += exp(v[j] - high);
  return even + odd;
}

/// The lowest finite number, not -inf, so that -inf less the largest so far is not NaN.
template <class Real>
constexpr Real kLowest = std::numeric_limits<Real>::lowest();

/// Rows that fit into `Count` vectors: they stay in registers between maximum and sum.
template <int Count, class Real>
void short_rows(const Real* x, int64_t stride, int64_t rows, int64_t columns, double* max,
                double* sum) {
  for (int64_t r = 0; r < rows; ++r) {
    Vector<Real> v[Count];
    load_columns<Count>(x + r * stride, columns, v);
    const Real high = largest_lane<Real>(largest<Count, Real>(v, Vector<Real>{} + kLowest<Real>));
    const double total = lane_sum<Real>(sum_of_exp<Count, Real>(v, Vector<Real>{} + high));
    max[r] = total == 0.0 ? kMinusInfinity<double> : static_cast<double>(high);
    sum[r] = total;
  }
}

/// Max and sum of e^(x - max) kept lane by lane, over vectors as they come. One pass: the processor fetches
/// the next columns while it computes these.
template <class Real>
struct LaneSums {
  Vector<Real> max = Vector<Real>{} + kLowest<Real>;
  Vector<Real> sum = {};

  template <int Count>
  void observe(const Vector<Real> (&v)[Count]) {
    const Vector<Real> high = largest<Count, Real>(v, max);
    sum = sum * exp(max - high) + sum_of_exp<Count, Real>(v, high);
    max = high;
  }

  template <int Count>
  void observe_end(const Real* x, int64_t columns) {
    Vector<Real> v[Count];
    load_columns<Count>(x, columns, v);
    observe(v);
  }
};

/// Sums of float are carried in float for at most this many columns, then in double.
constexpr int64_t kBlock = 2048;

template <class Real>
void block_sum(const Real* x, int64_t count, double* max, double* sum) {
  constexpr int kVectors = 8;
  constexpr int64_t kStep = kLanes<Real> * kVectors;
  LaneSums<Real> sums;
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    Vector<Real> v[kVectors];
    for (int j = 0; j < kVectors; ++j) {
      v[j] = load(x + i + j * kLanes<Real>);
      fetch(reinterpret_cast<const char*>(x + i + j * kLanes<Real>) + kFetchAhead);
    }
    sums.observe(v);
  }
  const int64_t left = count - i;
  if (left > 4 * kLanes<Real>) {
    sums.template observe_end<8>(x + i, left);
  } else if (left > 2 * kLanes<Real>) {
    sums.template observe_end<4>(x + i, left);
  } else if (left > 0) {
    sums.template observe_end<2>(x + i, left);
  }
  // Lanes that saw nothing but -inf hold the sum 0 at the lowest number.
  const Real high = largest_lane<Real>(sums.max);
  const double total = lane_sum<Real>(sums.sum * exp(sums.max - high));
  *max = total == 0.0 ? kMinusInfinity<double> : static_cast<double>(high);
  *sum = total;
}

template <class Real>
void long_row(const Real* x, int64_t count, double* max, double* sum) {
  block_sum(x, count < kBlock ? count : kBlock, max, sum);
  for (int64_t i = kBlock; i < count; i += kBlock) {
    double block_max = 0.0;
    double block_total = 0.0;
    block_sum(x + i, count - i < kBlock ? count - i : kBlock, &block_max, &block_total);
    const double high = *max > block_max ? *max : block_max;
    if (high == kMinusInfinity<double>) {
      *sum += block_total;  // 0, or NaN
      continue;
    }
    *sum = *sum * std::exp(*max - high) + block_total * std::exp(block_max - high);
    *max = high;
  }
}

template <class Real>
void log_sum(const Real* x, int64_t stride, int64_t rows, int64_t count, double* max, double* sum) {
  if (count <= 1 * kLanes<Real>) return short_rows<1>(x, stride, rows, count, max, sum);
  if (count <= 2 * kLanes<Real>) return short_rows<2>(x, stride, rows, count, max, sum);
  if (count <= 4 * kLanes<Real>) return short_rows<4>(x, stride, rows, count, max, sum);
  if (count <= 8 * kLanes<Real>) return short_rows<8>(x, stride, rows, count, max, sum);
  for (int64_t r = 0; r < rows; ++r) long_row(x + r * stride, count, max + r, sum + r);
}

/// out = scale * e^(x - log_z), added to what is there if `Add`.
template <class Real, bool Add>
void softmax(const Real* x, int64_t count, Real log_z, Real scale, const Real* next, Real* out) {
  constexpr int64_t kStep = kLanes<Real>;
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    fetch(next + i);
    const Vector<Real> p = exp(load(x + i) - log_z) * scale;
    store<Real>(out + i, Add ? load(out + i) + p : p);
  }
  if (i == count) return;
  const Vector<Real> p = exp(load_partial(x + i, count - i, Real(0)) - log_z) * scale;
  const Vector<Real> before = load_partial(out + i, count - i, Real(0));
  store_partial<Real>(out + i, Add ? before + p : p, count - i);
}

template <class Real>
void add_softmax(const Real* x, int64_t count, Real log_z, Real scale, Real* out) {
  softmax<Real, true>(x, count, log_z, scale, x, out);
}

template <class Real>
void store_softmax(const Real* x, int64_t count, Real log_z, Real scale, const Real* next,
                   Real* out) {
  softmax<Real, false>(x, count, log_z, scale, next == nullptr ? x : next, out);
}

/// One aligned vector past the caches.
template <class Real>
void stream_vector(Real* out, Vector<Real> v) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(out), (__m512i)v);
#elif defined(__AVX2__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(out), (__m256i)v);
#elif defined(__SSE2__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(out), (__m128i)v);
#else
  store(out, v);
#endif
}

/// Streams value(i), a vector at a time; the ends that do not fill one aligned vector go the usual way.
template <class Real, class VectorAt, class At>
void stream_with(int64_t count, Real* out, VectorAt vector_at, At at) {
  int64_t i = 0;
  for (; i < count && reinterpret_cast<std::uintptr_t>(out + i) % kVectorBytes != 0; ++i) {
    out[i] = at(i);
  }
  for (; i + kLanes<Real> <= count; i += kLanes<Real>) stream_vector(out + i, vector_at(i));
  for (; i < count; ++i) out[i] = at(i);
}

template <class Real>
void stream(const Real* row, int64_t count, Real* out) {
  stream_with(
      count, out, [row](int64_t i) { return load(row + i); }, [row](int64_t i) { return row[i]; });
}

template <class Real>
void stream_zero(int64_t count, Real* out) {
  stream_with(count, out, [](int64_t) { return Vector<Real>{}; }, [](int64_t) { return Real(0); });
}

template <class Real>
constexpr transducer::cpu::RowKernels<Real> row_table() {
  return {log_sum<Real>,     add_softmax<Real>, store_softmax<Real>,     stream<Real>,
          stream_zero<Real>, activate<Real>,    activate_backward<Real>, multiply<Real>};
}

}  // namespace

extern "C" const transducer::cpu::Kernels* TX_KERNELS_NAME() {
  static constexpr transducer::cpu::Kernels kTable = {
      TX_ISA_NAME,
      row_table<float>(),
      row_table<double>(),
      {join, log_add_arc, log_chain, arc_posterior, exp_all, log_all, exp_all_float}};
  return &kTable;
}
