// SPDX-License-Identifier: Apache-2.0
//
// 16-bit floats against first principles, over all 65,536 bit patterns of each format: the value
// is built anew by ldexp(mantissa, exponent), and rounding is checked at the midpoint of every two
// neighbours and one step to either side of it. Where the compiler has _Float16, it must agree.
#include "reference/core/half.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

namespace transducer {
namespace {

template <class Half>
struct Layout;

template <>
struct Layout<Float16> {
  static constexpr int kExponentBits = 5;
  static constexpr int kMantissaBits = 10;
};

template <>
struct Layout<BFloat16> {
  static constexpr int kExponentBits = 8;
  static constexpr int kMantissaBits = 7;
};

struct FormatNames {
  template <class Half>
  static std::string GetName(int) {
    return std::is_same_v<Half, Float16> ? "Float16" : "BFloat16";
  }
};

template <class Half>
class HalfTest : public testing::Test {
 protected:
  static constexpr int kM = Layout<Half>::kMantissaBits;
  static constexpr unsigned kExponentMask = (1u << Layout<Half>::kExponentBits) - 1u;
  static constexpr unsigned kMantissaMask = (1u << kM) - 1u;
  static constexpr unsigned kInfinity = kExponentMask << kM;
  static constexpr unsigned kQuietBit = 1u << (kM - 1);
  static constexpr unsigned kSignBit = 0x8000u;

  static bool is_nan(unsigned bits) { return (bits & 0x7FFFu) > kInfinity; }

  /// The value of a pattern that is not a NaN, from the definition of the format.
  static double value_of(unsigned bits) {
    const int bias = (1 << (Layout<Half>::kExponentBits - 1)) - 1;
    const unsigned field = (bits >> kM) & kExponentMask;
    const unsigned mantissa = bits & kMantissaMask;
    double magnitude = 0.0;
    if (field == kExponentMask) {
      magnitude = std::numeric_limits<double>::infinity();
    } else if (field == 0) {
      magnitude = std::ldexp(static_cast<double>(mantissa), 1 - bias - kM);
    } else {
      magnitude = std::ldexp(static_cast<double>(mantissa + (1u << kM)),
                             static_cast<int>(field) - bias - kM);
    }
    return (bits & kSignBit) != 0 ? -magnitude : magnitude;
  }

  static Half pattern(unsigned bits) { return Half::from_bits(static_cast<std::uint16_t>(bits)); }
  static double wide(unsigned bits) { return static_cast<double>(pattern(bits)); }
  template <class Real>
  static unsigned rounded(Real value) {
    return Half(value).bits;
  }
};

using Formats = testing::Types<Float16, BFloat16>;
TYPED_TEST_SUITE(HalfTest, Formats, FormatNames);

TYPED_TEST(HalfTest, IsATriviallyCopyablePairOfBytes) {
  EXPECT_EQ(sizeof(TypeParam), 2u);
  EXPECT_EQ(alignof(TypeParam), 2u);
  EXPECT_TRUE(std::is_trivially_copyable_v<TypeParam>);
  EXPECT_TRUE(std::is_trivially_default_constructible_v<TypeParam>);
  EXPECT_TRUE(std::is_standard_layout_v<TypeParam>);
  EXPECT_FALSE((std::is_convertible_v<double, TypeParam>));  // narrowing is always written out
  EXPECT_FALSE((std::is_constructible_v<TypeParam, int>));   // the value, or the bits?
}

TYPED_TEST(HalfTest, EveryPatternHasTheValueOfTheDefinition) {
  for (unsigned bits = 0; bits <= 0xFFFFu; ++bits) {
    const double as_double = this->wide(bits);
    const auto as_float = static_cast<float>(this->pattern(bits));
    if (this->is_nan(bits)) {
      ASSERT_TRUE(std::isnan(as_double) && std::isnan(as_float)) << std::hex << bits;
      continue;
    }
    const double expected = this->value_of(bits);
    ASSERT_EQ(as_double, expected) << std::hex << bits;
    ASSERT_EQ(static_cast<double>(as_float), expected) << std::hex << bits;
    ASSERT_EQ(std::signbit(as_double), (bits & this->kSignBit) != 0) << std::hex << bits;
    ASSERT_EQ(std::signbit(as_float), (bits & this->kSignBit) != 0) << std::hex << bits;
  }
}

TYPED_TEST(HalfTest, EveryPatternSurvivesTheRoundTrip) {
  for (unsigned bits = 0; bits <= 0xFFFFu; ++bits) {
    // A signalling NaN comes back quiet, as IEEE 754 asks of a conversion; all else as it was.
    const unsigned expected = this->is_nan(bits) ? (bits | this->kQuietBit) : bits;
    ASSERT_EQ(this->rounded(this->wide(bits)), expected) << std::hex << bits;
    ASSERT_EQ(this->rounded(static_cast<float>(this->pattern(bits))), expected) << std::hex << bits;
    if (!this->is_nan(bits)) {
      ASSERT_EQ(this->rounded(this->value_of(bits)), bits) << std::hex << bits;
    }
  }
}

TYPED_TEST(HalfTest, MidpointsGoToEvenAndTheirNeighboursToTheNearer) {
  const double up = std::numeric_limits<double>::infinity();
  const float up_float = std::numeric_limits<float>::infinity();
  for (unsigned low = 0; low + 1 < this->kInfinity; ++low) {
    const unsigned high = low + 1;
    const double midpoint = (this->value_of(low) + this->value_of(high)) / 2.0;  // exact
    const auto midpoint_float = static_cast<float>(midpoint);                    // exact too
    ASSERT_EQ(static_cast<double>(midpoint_float), midpoint);
    const unsigned even = (low % 2 == 0) ? low : high;
    for (const unsigned sign : {0u, this->kSignBit}) {
      const double s = sign != 0 ? -1.0 : 1.0;
      const auto s_float = static_cast<float>(s);
      ASSERT_EQ(this->rounded(s * midpoint), sign | even) << std::hex << low;
      ASSERT_EQ(this->rounded(s * std::nextafter(midpoint, 0.0)), sign | low) << std::hex << low;
      ASSERT_EQ(this->rounded(s * std::nextafter(midpoint, up)), sign | high) << std::hex << low;
      ASSERT_EQ(this->rounded(s_float * midpoint_float), sign | even) << std::hex << low;
      ASSERT_EQ(this->rounded(s_float * std::nextafter(midpoint_float, 0.0f)), sign | low)
          << std::hex << low;
      ASSERT_EQ(this->rounded(s_float * std::nextafter(midpoint_float, up_float)), sign | high)
          << std::hex << low;
      // The exact values' own neighbours in double do not leave them.
      ASSERT_EQ(this->rounded(s * std::nextafter(this->value_of(high), 0.0)), sign | high);
      ASSERT_EQ(this->rounded(s * std::nextafter(this->value_of(low), up)), sign | low);
    }
  }
}

TYPED_TEST(HalfTest, DoublesAreRoundedOnceAndNotThroughFloat) {
  // 1 + half a step + 2^-40 lies above the tie, so the next value is nearer. Rounded to float
  // first, the 2^-40 is gone, and the tie goes down to even: one step wrong.
  const double step = std::ldexp(1.0, -this->kM);
  const double crumb = std::ldexp(1.0, -40);
  const double above = 1.0 + step / 2 + crumb;
  EXPECT_EQ(this->rounded(above), this->rounded(1.0 + step));
  EXPECT_EQ(this->rounded(static_cast<float>(above)), this->rounded(1.0));  // the hazard is real
  // And from below, where the even neighbour is the upper one.
  const double below = 1.0 + 3 * step / 2 - crumb;
  EXPECT_EQ(this->rounded(below), this->rounded(1.0 + step));
  EXPECT_EQ(this->rounded(static_cast<float>(below)), this->rounded(1.0 + 2 * step));
  // The same among subnormals: half of the smallest value, and a crumb.
  const double smallest = this->value_of(1);
  EXPECT_EQ(this->rounded(smallest / 2 * (1.0 + crumb)), 1u);
  EXPECT_EQ(this->rounded(static_cast<float>(smallest / 2 * (1.0 + crumb))), 0u);
}

TYPED_TEST(HalfTest, OverflowStartsHalfAStepAboveTheLargest) {
  const unsigned largest = this->kInfinity - 1;
  const double max = this->value_of(largest);
  const double threshold = max + (max - this->value_of(largest - 1)) / 2;
  const double infinity = std::numeric_limits<double>::infinity();
  for (const unsigned sign : {0u, this->kSignBit}) {
    const double s = sign != 0 ? -1.0 : 1.0;
    const unsigned overflow = sign | this->kInfinity;
    EXPECT_EQ(this->rounded(s * std::nextafter(threshold, 0.0)), sign | largest);
    EXPECT_EQ(this->rounded(s * threshold), overflow);  // the tie: the largest is odd
    EXPECT_EQ(this->rounded(s * std::nextafter(threshold, infinity)), overflow);
    EXPECT_EQ(this->rounded(static_cast<float>(s * threshold)), overflow);
    EXPECT_EQ(this->rounded(s * 2 * max), overflow);
    EXPECT_EQ(this->rounded(s * std::numeric_limits<double>::max()), overflow);
    EXPECT_EQ(this->rounded(static_cast<float>(s) * std::numeric_limits<float>::max()), overflow);
    EXPECT_EQ(this->rounded(s * infinity), overflow);
    EXPECT_EQ(this->rounded(static_cast<float>(s * infinity)), overflow);
  }
}

TYPED_TEST(HalfTest, TooSmallBecomesZeroWithItsSign) {
  const double half_of_smallest = this->value_of(1) / 2;
  for (const unsigned sign : {0u, this->kSignBit}) {
    const double s = sign != 0 ? -1.0 : 1.0;
    EXPECT_EQ(this->rounded(s * 0.0), sign);
    EXPECT_EQ(this->rounded(s * half_of_smallest), sign);  // the tie: zero is even
    EXPECT_EQ(this->rounded(s * half_of_smallest / 2), sign);
    EXPECT_EQ(this->rounded(s * std::numeric_limits<double>::min()), sign);
    EXPECT_EQ(this->rounded(s * std::numeric_limits<double>::denorm_min()), sign);
    EXPECT_EQ(this->rounded(static_cast<float>(s) * std::numeric_limits<float>::denorm_min()),
              sign);
  }
}

TYPED_TEST(HalfTest, NanKeepsSignAndTopOfPayload) {
  constexpr std::uint64_t kNanDouble = 0x7FF0000000000000u;
  constexpr std::uint32_t kNanFloat = 0x7F800000u;
  for (unsigned payload = 1; payload <= this->kMantissaMask; ++payload) {
    for (const unsigned sign : {0u, 1u}) {
      const unsigned expected = (sign << 15) | this->kInfinity | this->kQuietBit | payload;
      const std::uint64_t top = static_cast<std::uint64_t>(payload) << (52 - this->kM);
      const std::uint64_t low_bits = 0x12345;  // below what fits; dropped, never rounded up
      const std::uint64_t in_double =
          (static_cast<std::uint64_t>(sign) << 63) | kNanDouble | top | low_bits;
      ASSERT_EQ(this->rounded(std::bit_cast<double>(in_double)), expected) << payload;
      const std::uint32_t in_float = (sign << 31) | kNanFloat | (payload << (23 - this->kM));
      ASSERT_EQ(this->rounded(std::bit_cast<float>(in_float)), expected) << payload;

      const auto half = this->pattern((sign << 15) | this->kInfinity | payload);
      ASSERT_EQ(std::bit_cast<std::uint64_t>(static_cast<double>(half)),
                (static_cast<std::uint64_t>(sign) << 63) | kNanDouble | (1ull << 51) | top);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(static_cast<float>(half)), in_float | (1u << 22));
    }
  }
  // A payload that lies wholly below what fits must not turn the NaN into an infinity.
  EXPECT_EQ(this->rounded(std::bit_cast<double>(kNanDouble | 1u)),
            this->kInfinity | this->kQuietBit);
  EXPECT_EQ(this->rounded(std::bit_cast<float>(kNanFloat | 1u)), this->kInfinity | this->kQuietBit);
}

TYPED_TEST(HalfTest, FloatAndItsExactDoubleRoundAlike) {
  // 7919 is prime and odd, so the walk meets every exponent with many mantissas: 542,358 patterns.
  int met = 0;
  for (std::uint64_t bits = 0; bits <= 0xFFFFFFFFu; bits += 7919) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(this->rounded(value), this->rounded(static_cast<double>(value))) << std::hex << bits;
    ++met;
  }
  EXPECT_GT(met, 500000);
}

TEST(Half, LiteralsOfTheStandards) {
  // From the definition: 1 = 2^0, 65504 = (2 - 2^-10) 2^15, 1/3 = 1.0101..b 2^-2, rounded.
  static_assert(Float16(1.0).bits == 0x3C00);
  static_assert(Float16(-2.0f).bits == 0xC000);
  static_assert(Float16(65504.0).bits == 0x7BFF);
  static_assert(Float16(65519.999).bits == 0x7BFF);
  static_assert(Float16(65520.0).bits == 0x7C00);
  static_assert(Float16(1.0 / 3.0).bits == 0x3555);
  static_assert(Float16(0x1p-24).bits == 0x0001);
  static_assert(Float16(0x1p-14).bits == 0x0400);
  static_assert(static_cast<double>(Float16::from_bits(0x03FF)) == 0x1p-14 - 0x1p-24);
  static_assert(BFloat16(1.0).bits == 0x3F80);
  static_assert(BFloat16(-2.0f).bits == 0xC000);
  static_assert(BFloat16(1.0 / 3.0).bits == 0x3EAB);
  static_assert(BFloat16(0x1.fep127).bits == 0x7F7F);
  static_assert(BFloat16(0x1.ffp127).bits == 0x7F80);
  static_assert(BFloat16(0x1p-133).bits == 0x0001);
  static_assert(static_cast<float>(BFloat16::from_bits(0x0001)) == 0x1p-133f);
  // The same at run time, where no constant folding helps.
  volatile double third = 1.0 / 3.0;
  EXPECT_EQ(Float16(third).bits, 0x3555);
  EXPECT_EQ(BFloat16(third).bits, 0x3EAB);
}

#if defined(__FLT16_MANT_DIG__)
TEST(Half, Float16AgreesWithTheCompilersOwnType) {
  __extension__ typedef _Float16 Native;
  const double up = std::numeric_limits<double>::infinity();
  for (unsigned bits = 0; bits <= 0xFFFFu; ++bits) {
    const auto half = Float16::from_bits(static_cast<std::uint16_t>(bits));
    const auto native = std::bit_cast<Native>(static_cast<std::uint16_t>(bits));
    const auto value = static_cast<double>(native);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(static_cast<double>(half))) << std::hex << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(half), value) << std::hex << bits;
    if (std::isinf(value)) continue;
    // The midpoint to the next value outward; past the largest, where infinity stands, 2^16 would.
    const auto outward = std::bit_cast<Native>(static_cast<std::uint16_t>(bits + 1));
    const double next = std::isinf(static_cast<double>(outward)) ? std::copysign(0x1p16, value)
                                                                 : static_cast<double>(outward);
    const double middle = (value + next) / 2;
    for (const double x :
         {value, middle, std::nextafter(middle, up), std::nextafter(middle, -up)}) {
      volatile double seen = x;
      const auto expected = std::bit_cast<std::uint16_t>(static_cast<Native>(seen));
      ASSERT_EQ(Float16(x).bits, expected) << std::hexfloat << x;
    }
  }
}
#endif

}  // namespace
}  // namespace transducer
