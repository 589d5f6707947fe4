// SPDX-License-Identifier: Apache-2.0
//
// The rows of one frame of dense logits on their way in, and of their gradient on their way out: where they
// lie if type and strides allow, else through a buffer. Finished rows go past the caches, several in one go
// where they touch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/rows.hpp"
#include "cpu/utterance.hpp"

namespace transducer::cpu {

/// Rows of one frame of the logits.
template <class Real>
class InputRows {
 public:
  InputRows(const Call& call, std::int64_t b, std::int64_t t, Real* buffer)
      : tensor_(std::get<DenseSource>(call.request.source).logits), b_(b), t_(t), buffer_(buffer) {
    if (!rows_in_place<Real>(tensor_)) return;
    frame_ = static_cast<const Real*>(tensor_.data) + tensor_.offset({b, t});
    stride_ = tensor_.strides[2];
  }

  const Real* row(std::int64_t u) const {
    return frame_ != nullptr ? frame_ + u * stride_ : row_or_copy(tensor_, {b_, t_, u}, buffer_);
  }

  /// A row to be fetched ahead of its use, or nullptr. Short rows are not worth it.
  const Real* ahead(std::int64_t u) const {
    constexpr std::int64_t kShort = 1024 / sizeof(Real);
    return frame_ != nullptr && tensor_.extents[3] >= kShort ? frame_ + u * stride_ : nullptr;
  }

 private:
  const TensorRef& tensor_;
  std::int64_t b_, t_;
  Real* buffer_;
  const Real* frame_ = nullptr;  // if rows can be read where they lie
  std::int64_t stride_ = 0;
};

/// Where the rows of one frame of the gradient go.
template <class Real>
class OutputRows {
 public:
  OutputRows(const Call& call, std::int64_t b, std::int64_t t)
      : kernels_(row_kernels<Real>(call.kernels)),
        tensor_(call.result.logits_gradient),
        columns_(call.valid.shape.columns),
        b_(b),
        t_(t) {
    if (!rows_in_place<Real>(tensor_)) return;
    frame_ = static_cast<Real*>(tensor_.data) + tensor_.offset({b, t});
    stride_ = tensor_.strides[2];
  }

  /// Rows [u, u + count), contiguous in `rows`.
  void put(const Real* rows, std::int64_t u, std::int64_t count) const {
    if (frame_ != nullptr && stride_ == columns_) {
      return kernels_.stream(rows, count * columns_, frame_ + u * stride_);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      if (frame_ != nullptr) {
        kernels_.stream(rows + i * columns_, columns_, frame_ + (u + i) * stride_);
      } else {
        round_row(tensor_, {b_, t_, u + i}, rows + i * columns_);
      }
    }
  }

  /// Zeros in rows [u, u + count); `row` is a buffer for one.
  void put_zeros(Real* row, std::int64_t u, std::int64_t count) const {
    if (frame_ != nullptr && stride_ == columns_) {
      return kernels_.stream_zero(count * columns_, frame_ + u * stride_);
    }
    std::fill_n(row, columns_, Real(0));
    for (std::int64_t i = 0; i < count; ++i) put(row, u + i, 1);
  }

 private:
  const RowKernels<Real>& kernels_;
  const TensorRef& tensor_;
  std::int64_t columns_, b_, t_;
  Real* frame_ = nullptr;  // if rows can be written where they lie
  std::int64_t stride_ = 0;
};

}  // namespace transducer::cpu
