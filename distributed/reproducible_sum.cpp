// SPDX-License-Identifier: Apache-2.0
#include "distributed/reproducible_sum.hpp"

#include <bit>
#include <cmath>
#include <limits>

namespace transducer::distributed {
namespace {

constexpr int kDigitBits = 40;
constexpr int kDigits = 3;
/// The digit of 2^-800: two more below it still have a scale that a double can hold.
constexpr std::int32_t kLowest = -20;
constexpr std::int32_t kEmpty = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kNaN = std::numeric_limits<std::int32_t>::max();

constexpr int kExponentBias = 1023;
constexpr int kMantissaBits = 52;

/// 2^exponent of a normal number.
double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + kExponentBias)
                               << kMantissaBits);
}

/// The highest bit of a normal number: floor(log2 |x|).
int highest_bit(double x) {
  return static_cast<int>((std::bit_cast<std::uint64_t>(x) >> kMantissaBits) & 0x7ffu) -
         kExponentBias;
}

/// floor(a / kDigitBits), for negative a too.
std::int32_t digit_of_bit(int bit) {
  return (bit >= 0 ? bit : bit - (kDigitBits - 1)) / kDigitBits;
}

}  // namespace

ReproducibleSum::ReproducibleSum(std::size_t elements)
    : tops_(elements, kEmpty), digits_(elements * kDigits, 0) {}

void ReproducibleSum::raise(std::size_t element, std::int32_t top) {
  std::int64_t* digits = digits_.data() + element * kDigits;
  const std::int32_t before = tops_[element];
  tops_[element] = top;
  if (before == kEmpty || top == kNaN) return;
  const std::int32_t shift = top - before;
  for (int d = kDigits - 1; d >= 0; --d) digits[d] = d >= shift ? digits[d - shift] : 0;
}

void ReproducibleSum::add(std::size_t element, double term) {
  if (!std::isfinite(term)) {
    tops_[element] = kNaN;
    return;
  }
  const std::int32_t top = term == 0.0 ? kEmpty : digit_of_bit(highest_bit(term));
  if (top < kLowest || tops_[element] == kNaN) return;
  if (top > tops_[element]) raise(element, top);
  const std::int32_t offset = tops_[element] - top;
  std::int64_t* digits = digits_.data() + element * kDigits;
  double rest = term;
  for (std::int32_t d = 0; offset + d < kDigits; ++d) {
    const int unit = kDigitBits * (top - d);
    // Exact: a product with a power of two, a cut, and a difference of neighbours.
    const auto digit = static_cast<std::int64_t>(rest * power_of_two(-unit));
    digits[offset + d] += digit;
    rest -= static_cast<double>(digit) * power_of_two(unit);
  }
}

void ReproducibleSum::add(std::size_t first, std::span<const double> terms) {
  for (std::size_t i = 0; i < terms.size(); ++i) add(first + i, terms[i]);
}

void ReproducibleSum::combine(Communicator& communicator) {
  std::vector<std::int32_t> tops = tops_;
  communicator.maximum(tops);
  for (std::size_t i = 0; i < tops.size(); ++i) {
    if (tops[i] > tops_[i]) raise(i, tops[i]);
  }
  communicator.sum(std::span<std::int64_t>(digits_));
}

void ReproducibleSum::read(std::size_t first, std::span<double> sums) const {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::int32_t top = tops_[first + i];
    sums[i] = 0.0;
    if (top == kNaN) sums[i] = std::numeric_limits<double>::quiet_NaN();
    if (top == kEmpty || top == kNaN) continue;
    const std::int64_t* digits = digits_.data() + (first + i) * kDigits;
    for (int d = kDigits - 1; d >= 0; --d) {
      sums[i] += static_cast<double>(digits[d]) * power_of_two(kDigitBits * (top - d));
    }
  }
}

}  // namespace transducer::distributed
