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

/// Max and sum of e^(x - max) kept lane by lane, over vectors as they come. One pass: the processor fetches
/// the next columns while it computes these.
template <class Real>
struct LaneSums {
  // The lowest finite number, not -inf: -inf less itself would be NaN.
  Vector<Real> max = Vector<Real>{} + std::numeric_limits<Real>::lowest();
  Vector<Real> sum = {};

  template <int Count>
  void observe(const Vector<Real> (&x)[Count]) {
    Vector<Real> high = x[0];
    for (int j = 1; j < Count; ++j) high = maximum<Real>(x[j], high);
    high = maximum<Real>(high, max);
    sum *= exp(max - high);
    Vector<Real> even = {}, odd = {};
    for (int j = 0; j < Count; j += 2) even += exp(x[j] - high);
    for (int j = 1; j < Count; j += 2) odd += exp(x[j] - high);
    sum += even + odd;
    max = high;
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
    for (int j = 0; j < kVectors; ++j) v[j] = load(x + i + j * kLanes<Real>);
    sums.observe(v);
  }
  for (; i < count; i += kLanes<Real>) {
    const int64_t left = count - i;
    const Vector<Real> v[1] = {
        left >= kLanes<Real> ? load(x + i) : load_partial(x + i, left, kMinusInfinity<Real>)};
    sums.observe(v);
  }
  // Lanes that saw nothing but -inf hold the sum 0 at the lowest number.
  double high = -std::numeric_limits<double>::infinity();
  for (int lane = 0; lane < kLanes<Real>; ++lane) {
    const bool empty = sums.sum[lane] == Real(0);
    if (!empty && static_cast<double>(sums.max[lane]) > high)
      high = static_cast<double>(sums.max[lane]);
  }
  double total = 0.0;
  for (int lane = 0; lane < kLanes<Real>; ++lane) {
    const double lane_sum = static_cast<double>(sums.sum[lane]);
    if (lane_sum == 0.0) continue;
    total += lane_sum * std::exp(static_cast<double>(sums.max[lane]) - high);
  }
  *max = high;
  *sum = total;
}

template <class Real>
void log_sum(const Real* x, int64_t count, double* max, double* sum) {
  block_sum(x, count < kBlock ? count : kBlock, max, sum);
  for (int64_t i = kBlock; i < count; i += kBlock) {
    double block_max = 0.0;
    double block_total = 0.0;
    block_sum(x + i, count - i < kBlock ? count - i : kBlock, &block_max, &block_total);
    const double high = *max > block_max ? *max : block_max;
    if (high == -std::numeric_limits<double>::infinity()) {
      *sum += block_total;  // 0, or NaN
      continue;
    }
    *sum = *sum * std::exp(*max - high) + block_total * std::exp(block_max - high);
    *max = high;
  }
}

/// out = scale * e^(x - log_z), added to what is there if `Add`.
template <class Real, bool Add>
void softmax(const Real* x, int64_t count, Real log_z, Real scale, Real* out) {
  constexpr int64_t kStep = kLanes<Real>;
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
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
  softmax<Real, true>(x, count, log_z, scale, out);
}

template <class Real>
void store_softmax(const Real* x, int64_t count, Real log_z, Real scale, Real* out) {
  softmax<Real, false>(x, count, log_z, scale, out);
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
      {log_add_arc, log_chain, arc_posterior, exp_all, log_all, exp_all_float}};
  return &kTable;
}
