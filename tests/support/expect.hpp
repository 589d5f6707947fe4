// SPDX-License-Identifier: Apache-2.0
//
// The comparator of compare.hpp for GoogleTest:
//
//   EXPECT_TRUE(close(got, expected, 1e-12));     |got - expected| <= 1e-12 max(1, |expected|)
//   EXPECT_TRUE(same_bits(got, expected));
#pragma once

#include <span>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/compare.hpp"

namespace transducer::testing {

inline ::testing::AssertionResult empty_or_fail(const std::string& text) {
  return text.empty() ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << text;
}

/// Success if every element is within tolerance * max(1, |expected|).
inline ::testing::AssertionResult close(std::span<const double> got,
                                        std::span<const double> expected, double tolerance) {
  return empty_or_fail(difference("array", got, expected, tolerance));
}

/// Success if both hold the same bits, signs of zero included; any NaN equals any other.
inline ::testing::AssertionResult same_bits(std::span<const double> got,
                                            std::span<const double> expected) {
  return empty_or_fail(bit_difference("array", got, expected));
}

}  // namespace transducer::testing
