// SPDX-License-Identifier: Apache-2.0
//
// The gradient of an array that all ranks share, W [K, H] or c [K]: computed in the local arithmetic, summed in
// float64 by the caller, rounded once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "reference/core/tensor_ref.hpp"

namespace transducer::distributed {

class SharedGradient {
 public:
  SharedGradient() = default;

  /// Points `gradient`, if it is wanted, at memory of its own for the local part; the array that it referred to
  /// takes the sum later. A 16-bit input is replaced by a float32 copy, so that a rank's part is not rounded to 16
  /// bits before it is summed.
  SharedGradient(TensorRef& input, TensorRef& gradient);

  bool wanted() const { return output_.defined(); }
  std::size_t size() const { return wanted() ? static_cast<std::size_t>(rows_ * columns_) : 0; }

  /// The local part.
  std::vector<double> values() const;
  /// Rounds the sum into the caller's array.
  void write(std::span<const double> sum) const;

 private:
  TensorRef output_;
  TensorRef local_;
  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;
  std::vector<double> memory_;
  std::vector<float> widened_;
};

}  // namespace transducer::distributed
