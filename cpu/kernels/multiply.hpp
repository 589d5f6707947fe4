// SPDX-License-Identifier: Apache-2.0
//
// Matrix products by Eigen, one thread each. The caller always multiplies full tiles, padded with zeros,
// because Eigen's bits depend on the shape.
#pragma once

// NOLINTBEGIN(readability-identifier-naming): Eigen's names
#define EIGEN_DONT_PARALLELIZE
#define EIGEN_NO_DEBUG
// NOLINTEND(readability-identifier-naming)
#include <Eigen/Core>

#include "cpu/kernels/vector.hpp"

namespace transducer::cpu::rows {

template <class Real>
using Matrix = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class Real>
using MatrixMap = Eigen::Map<Matrix<Real>, Eigen::Unaligned, Eigen::OuterStride<>>;
template <class Real>
using ConstMatrixMap = Eigen::Map<const Matrix<Real>, Eigen::Unaligned, Eigen::OuterStride<>>;

template <class Real>
void multiply(bool transpose_a, bool transpose_b, bool accumulate, int64_t m, int64_t n, int64_t k,
              const Real* a, int64_t a_stride, const Real* b, int64_t b_stride, Real* c,
              int64_t c_stride) {
  const ConstMatrixMap<Real> left(a, transpose_a ? k : m, transpose_a ? m : k,
                                  Eigen::OuterStride<>(a_stride));
  const ConstMatrixMap<Real> right(b, transpose_b ? n : k, transpose_b ? k : n,
                                   Eigen::OuterStride<>(b_stride));
  MatrixMap<Real> result(c, m, n, Eigen::OuterStride<>(c_stride));
  if (!accumulate) result.setZero();
  if (transpose_a && transpose_b) {
    result.noalias() += left.transpose() * right.transpose();
  } else if (transpose_a) {
    result.noalias() += left.transpose() * right;
  } else if (transpose_b) {
    result.noalias() += left * right.transpose();
  } else {
    result.noalias() += left * right;
  }
}

}  // namespace transducer::cpu::rows
