// SPDX-License-Identifier: Apache-2.0
//
// Finished rows of the dense gradient on their way out: past the caches where they can be written where they
// lie, several rows in one go where they touch, else one after the other with their type and strides.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/rows.hpp"
#include "cpu/utterance.hpp"

namespace transducer::cpu {

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
