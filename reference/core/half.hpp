// SPDX-License-Identifier: Apache-2.0
//
// The two 16-bit storage types, Float16 (IEEE 754 binary16) and BFloat16 (the upper half of a
// float). They hold bits and convert; arithmetic is done in float or double.
//
//   value = (-1)^s * 2^(e - bias) * (1 + m / 2^M)       e = 1 .. 2^E - 2     (normal)
//         = (-1)^s * 2^(1 - bias) * (m / 2^M)           e = 0                (subnormal)
//   Float16: E = 5, M = 10, bias = 15        BFloat16: E = 8, M = 7, bias = 127
//
// Narrowing rounds once, to nearest, ties to even, from the type that is given: going from double
// through float would round twice, and 1 + 2^-11 + 2^-40 would come out one step low in Float16.
// Only integer operations are used to narrow, so host and device give the same bits, NaN included.
#pragma once

#include <cstdint>

#include "reference/core/macros.hpp"

namespace transducer {

namespace detail {

/// Layout of a wider IEEE type: the unsigned integer of its size, exponent and mantissa bits.
template <class Real>
struct WideFormat;

template <>
struct WideFormat<float> {
  using Bits = std::uint32_t;
  static constexpr int kExponentBits = 8;
  static constexpr int kMantissaBits = 23;
};

template <>
struct WideFormat<double> {
  using Bits = std::uint64_t;
  static constexpr int kExponentBits = 11;
  static constexpr int kMantissaBits = 52;
};

/// std::bit_cast by the built-in below it: the library function is not marked for device code, the
/// built-in (GCC 11, Clang 9, nvcc) needs no mark.
template <class To, class From>
TX_HD constexpr To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

/// Rounds to nearest even in the 16-bit format (E, M). Overflow gives infinity; a NaN keeps its
/// sign and the top of its payload and becomes quiet.
template <int E, int M, class Real>
TX_HD constexpr std::uint16_t narrow(Real value) {
  using Wide = WideFormat<Real>;
  using Bits = typename Wide::Bits;
  constexpr int kWideMantissa = Wide::kMantissaBits;
  constexpr int kWideBias = (1 << (Wide::kExponentBits - 1)) - 1;
  constexpr int kWideSpecial = (1 << Wide::kExponentBits) - 1;
  constexpr int kBias = (1 << (E - 1)) - 1;
  constexpr int kMinExponent = 1 - kBias;
  constexpr std::uint32_t kInfinity = ((1u << E) - 1u) << M;
  constexpr Bits kOne = 1;

  const Bits bits = bits_as<Bits>(value);
  const auto sign = static_cast<std::uint32_t>(bits >> (kWideMantissa + Wide::kExponentBits)) << 15;
  const int field = static_cast<int>(bits >> kWideMantissa) & kWideSpecial;
  Bits mantissa = bits & ((kOne << kWideMantissa) - kOne);

  if (field == kWideSpecial) {
    if (mantissa == 0) return static_cast<std::uint16_t>(sign | kInfinity);
    const auto payload = static_cast<std::uint32_t>(mantissa >> (kWideMantissa - M));
    return static_cast<std::uint16_t>(sign | kInfinity | (1u << (M - 1)) | payload);
  }
  const int exponent = (field == 0 ? 1 : field) - kWideBias;
  if (exponent > kBias) return static_cast<std::uint16_t>(sign | kInfinity);
  if (field != 0) mantissa |= kOne << kWideMantissa;

  // |value| = mantissa * 2^(exponent - kWideMantissa). `dropped` low bits lie below one step of the
  // target; below its normal range a step no longer shrinks with the exponent.
  int dropped = kWideMantissa - M;
  if (exponent < kMinExponent) dropped += kMinExponent - exponent;
  if (dropped > kWideMantissa + 1) return static_cast<std::uint16_t>(sign);  // under half a step
  const Bits rest = mantissa & ((kOne << dropped) - kOne);
  const Bits tie = kOne << (dropped - 1);
  auto steps = static_cast<std::uint32_t>(mantissa >> dropped);
  if (rest > tie || (rest == tie && (steps & 1u) != 0)) ++steps;

  // `steps` still holds the leading one, which adds 1 to the exponent field; so does a carry out of
  // the mantissa, up to and including the step from the largest value to infinity.
  const auto above =
      static_cast<std::uint32_t>(exponent < kMinExponent ? 0 : exponent - kMinExponent);
  return static_cast<std::uint16_t>(sign | ((above << M) + steps));
}

/// The exact value of a number in the 16-bit format (E, M); a NaN becomes quiet.
template <class Real, int E, int M>
TX_HD constexpr Real widen(std::uint16_t bits) {
  using Wide = WideFormat<Real>;
  using Bits = typename Wide::Bits;
  constexpr int kWideMantissa = Wide::kMantissaBits;
  constexpr int kShift = kWideMantissa - M;
  constexpr int kRebias = (1 << (Wide::kExponentBits - 1)) - (1 << (E - 1));
  constexpr int kSpecial = (1 << E) - 1;
  constexpr Bits kWideInfinity = ((Bits(1) << Wide::kExponentBits) - 1) << kWideMantissa;

  const Bits sign = static_cast<Bits>(bits >> 15) << (kWideMantissa + Wide::kExponentBits);
  const int field = (bits >> M) & kSpecial;
  const Bits mantissa = bits & ((Bits(1) << M) - 1);

  if (field == kSpecial) {
    const Bits quiet = mantissa == 0 ? Bits(0) : Bits(1) << (kWideMantissa - 1);
    return bits_as<Real>(sign | kWideInfinity | quiet | (mantissa << kShift));
  }
  if (field == 0 && kRebias != 0) {
    // Subnormal here, normal there: mantissa times the smallest positive value, without rounding.
    const Real step = bits_as<Real>(static_cast<Bits>(kRebias + 1 - M) << kWideMantissa);
    return bits_as<Real>(sign | bits_as<Bits>(static_cast<Real>(mantissa) * step));
  }
  return bits_as<Real>(sign | (static_cast<Bits>(field + kRebias) << kWideMantissa) |
                       (mantissa << kShift));
}

}  // namespace detail

/// IEEE 754 binary16: 11 significant bits, largest value 65504, smallest 2^-24.
/// The default constructor leaves the bits unset, so that arrays of it may live in shared memory.
struct Float16 {
  std::uint16_t bits;

  Float16() = default;
  TX_HD explicit constexpr Float16(double value) : bits(detail::narrow<5, 10>(value)) {}
  TX_HD explicit constexpr Float16(float value) : bits(detail::narrow<5, 10>(value)) {}
  TX_HD explicit constexpr operator double() const { return detail::widen<double, 5, 10>(bits); }
  TX_HD explicit constexpr operator float() const { return detail::widen<float, 5, 10>(bits); }

  /// The number whose representation is `pattern`. There is no constructor from an integer: it
  /// could mean the value or the bits.
  TX_HD static constexpr Float16 from_bits(std::uint16_t pattern) {
    Float16 result{};
    result.bits = pattern;
    return result;
  }
};

/// bfloat16: 8 significant bits, the exponent range of float.
/// The default constructor leaves the bits unset, so that arrays of it may live in shared memory.
struct BFloat16 {
  std::uint16_t bits;

  BFloat16() = default;
  TX_HD explicit constexpr BFloat16(double value) : bits(detail::narrow<8, 7>(value)) {}
  TX_HD explicit constexpr BFloat16(float value) : bits(detail::narrow<8, 7>(value)) {}
  TX_HD explicit constexpr operator double() const { return detail::widen<double, 8, 7>(bits); }
  TX_HD explicit constexpr operator float() const { return detail::widen<float, 8, 7>(bits); }

  /// The number whose representation is `pattern`; see Float16::from_bits.
  TX_HD static constexpr BFloat16 from_bits(std::uint16_t pattern) {
    BFloat16 result{};
    result.bits = pattern;
    return result;
  }
};

static_assert(sizeof(Float16) == 2 && sizeof(BFloat16) == 2);

}  // namespace transducer
