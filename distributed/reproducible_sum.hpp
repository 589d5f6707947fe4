// SPDX-License-Identifier: Apache-2.0
//
// Sums whose bits do not depend on the order of the terms, nor on which rank added which.
//
// A term is cut, without rounding, into integers on a fixed grid: digit j counts multiples of 2^(40 j) and is
// below 2^40 in magnitude. An element keeps the three digits below and at the highest one that any of its
// terms has; integer sums have no order. What lies below is dropped, and which digits are dropped depends on
// the largest term alone. (The idea: Demmel and Nguyen, "Fast reproducible floating-point summation", 2013;
// Ahrens, Demmel and Nguyen, "Algorithms for efficient reproducible floating point summation", 2020.)
//
// Error: at most terms x 2^-80 of the largest term, and the rounding of the result. Memory and bytes on the
// wire: 28 per element. Work: about ten operations per term.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "distributed/communicator.hpp"

namespace transducer::distributed {

class ReproducibleSum {
 public:
  /// As many terms as a 64-bit digit is sure to hold, over all ranks.
  static constexpr std::int64_t kMaxTerms = std::int64_t{1} << 23;
  static constexpr std::size_t kBytesPerElement = sizeof(std::int32_t) + 3 * sizeof(std::int64_t);

  explicit ReproducibleSum(std::size_t elements);

  /// Adds one term to each element from `first` on. A term below 2^-800 counts as 0; one that is not finite
  /// makes its element NaN.
  void add(std::size_t first, std::span<const double> terms);

  /// Sums over the ranks; every rank then holds the same digits.
  void combine(Communicator& communicator);

  /// The sums from `first` on, each rounded to double.
  void read(std::size_t first, std::span<double> sums) const;

 private:
  void add(std::size_t element, double term);
  void raise(std::size_t element, std::int32_t top);

  std::vector<std::int32_t> tops_;    // [elements] number of the highest digit kept
  std::vector<std::int64_t> digits_;  // [elements, 3] highest first
};

}  // namespace transducer::distributed
