// SPDX-License-Identifier: Apache-2.0
//
// The hot loops of the CPU layer, as a table of functions: one table for each instruction set the build
// has, all made from the same sources (kernels/*.cpp). Only plain pointers and numbers cross this border
// and this header includes nothing of ours, so that no inline function is shared between copies compiled
// for different processors.
#pragma once

#include <cstdint>

namespace transducer::cpu {

/// Loops over one row of logits, in float or double.
template <class Real>
struct RowKernels {
  /// max[r], and sum[r] = sum e^(x - max), over x[r stride .. r stride + count) for each of `rows` rows.
  /// (-inf, 0) if there is nothing but -inf; the sum is NaN if any x is NaN or +inf.
  void (*log_sum)(const Real* x, std::int64_t stride, std::int64_t rows, std::int64_t count,
                  double* max, double* sum);

  /// out[i] += scale * e^(x[i] - log_z).
  void (*add_softmax)(const Real* x, std::int64_t count, Real log_z, Real scale, Real* out);

  /// out[i] = scale * e^(x[i] - log_z). Meanwhile the row at `next`, if any, is fetched.
  void (*store_softmax)(const Real* x, std::int64_t count, Real log_z, Real scale, const Real* next,
                        Real* out);

  /// Copies a finished row past the caches; `out` is Real-aligned.
  void (*stream)(const Real* row, std::int64_t count, Real* out);

  /// Fills with zeros past the caches.
  void (*stream_zero)(std::int64_t count, Real* out);

  /// hidden[h] = act(encoder[h] + factor * predictor[h]); `activation` numbers transducer::Activation.
  void (*activate)(int activation, const Real* encoder, const Real* predictor, Real factor,
                   std::int64_t count, Real* hidden);

  /// gradient[h] *= act'(encoder[h] + factor * predictor[h]).
  void (*activate_backward)(int activation, const Real* encoder, const Real* predictor, Real factor,
                            std::int64_t count, Real* gradient);

  /// c (m x n) = or += op(a) b, all row-major; a is m x k, or k x m if `transpose_a`; b is k x n, or
  /// n x k if `transpose_b`. One thread.
  void (*multiply)(bool transpose_a, bool transpose_b, bool accumulate, std::int64_t m,
                   std::int64_t n, std::int64_t k, const Real* a, std::int64_t a_stride,
                   const Real* b, std::int64_t b_stride, Real* c, std::int64_t c_stride);
};

/// Loops over a row of lattice nodes, in double.
struct LatticeKernels {
  /// out[i] = max[i] + log sum[i], of what log_sum makes: -inf where the sum is 0, NaN where it is NaN.
  void (*join)(const double* max, const double* sum, std::int64_t count, double* out);

  /// sum[i] = log(e^sum[i] + e^(state[i] + weight[i])).
  void (*log_add_arc)(const double* state, const double* weight, std::int64_t count, double* sum);

  /// The arcs that stay in a frame: row[i] = log(e^row[i] + e^(row[i-1] + weight[i-1])) for i = 1, 2, ...
  /// in order; backwards, row[i] takes row[i+1] + weight[i], from the end.
  void (*log_chain)(double* row, const double* weight, std::int64_t count, bool backwards);

  /// posterior[i] = e^(alpha[i] + weight[i] + beta[i] + cost), 0 where any of them is -inf.
  void (*arc_posterior)(const double* alpha, const double* weight, const double* beta, double cost,
                        std::int64_t count, double* posterior);

  /// Elementwise e^x and log x, for tests of the stated error bounds.
  void (*exp_all)(const double* x, std::int64_t count, double* out);
  void (*log_all)(const double* x, std::int64_t count, double* out);
  void (*exp_all_float)(const float* x, std::int64_t count, float* out);
};

struct Kernels {
  const char* instruction_set;
  RowKernels<float> single;
  RowKernels<double> full;
  LatticeKernels lattice;
};

template <class Real>
const RowKernels<Real>& row_kernels(const Kernels& kernels) {
  // NOLINTNEXTLINE(bugprone-branch-clone): they differ in type
  if constexpr (sizeof(Real) == sizeof(float)) {
    return kernels.single;
  } else {
    return kernels.full;
  }
}

/// The table for the processor this runs on, or for FLASH_TRANSDUCER_ISA if that is set (baseline, avx2,
/// avx512). Throws InvalidArgument if the name is unknown or the processor lacks it.
const Kernels& kernels();

}  // namespace transducer::cpu
