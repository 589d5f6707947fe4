// SPDX-License-Identifier: Apache-2.0
//
// Random bits without state: Philox4x32-10 turns a 128-bit counter and a 64-bit key into 128 bits.
// Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC'11,
// doi:10.1145/2063384.2063405.
//
// On top of it the dropout rule. Joint unit h of node (t, u) is kept where
//
//   lane(h mod 8) >= round(65536 p)      lanes: Philox(counter = (h / 8, u, t, utterance id),
//                                                      key = (low, high word of the seed))
//
// Every backend, tile size and shard asks the same question and so gets the same mask. The caller
// multiplies what is kept by 1 / (1 - p). One call of ten rounds serves eight units.
#pragma once

#include <cstdint>

#include "reference/core/macros.hpp"

namespace transducer {

/// Four 32-bit words: the counter that goes in, or the random bits that come out.
struct Philox4x32 {
  std::uint32_t words[4];
};

/// The key of a stream.
struct PhiloxKey {
  std::uint32_t words[2];
};

/// Ten rounds of Philox-4x32.
TX_HD constexpr Philox4x32 philox4x32_10(Philox4x32 counter, PhiloxKey key) {
  // Multipliers and key increments of the paper; the increments are the fractional parts of the
  // golden ratio and of sqrt(3).
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57u;
  constexpr std::uint32_t kIncrement0 = 0x9E3779B9u;
  constexpr std::uint32_t kIncrement1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product_0 = kMultiplier0 * counter.words[0];
    const std::uint64_t product_1 = kMultiplier1 * counter.words[2];
    counter =
        Philox4x32{{static_cast<std::uint32_t>(product_1 >> 32) ^ counter.words[1] ^ key.words[0],
                    static_cast<std::uint32_t>(product_1),
                    static_cast<std::uint32_t>(product_0 >> 32) ^ counter.words[3] ^ key.words[1],
                    static_cast<std::uint32_t>(product_0)}};
    key.words[0] += kIncrement0;  // once more than is used after the last round; it costs nothing
    key.words[1] += kIncrement1;
  }
  return counter;
}

/// Eight 16-bit numbers, uniform on 0 .. 65535, for the joint units 8 * block .. 8 * block + 7.
struct DropoutLanes {
  std::uint16_t lanes[8];
};

/// The lanes of one block of eight joint units: output words in order, low half first.
/// `utterance_id` counts modulo 2^32 (its low 32 bits); so do `t`, `u` and `block`.
TX_HD constexpr DropoutLanes dropout_lanes(std::uint64_t seed, std::int64_t utterance_id,
                                           std::int64_t t, std::int64_t u, std::int64_t block) {
  const Philox4x32 random = philox4x32_10(
      Philox4x32{{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(u),
                  static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(utterance_id)}},
      PhiloxKey{{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}});
  DropoutLanes result{};
  for (int word = 0; word < 4; ++word) {
    result.lanes[2 * word] = static_cast<std::uint16_t>(random.words[word] & 0xFFFFu);
    result.lanes[2 * word + 1] = static_cast<std::uint16_t>(random.words[word] >> 16);
  }
  return result;
}

/// round(65536 p), halves up: lanes below it are dropped. 0 keeps all, 65536 none; p outside [0, 1]
/// counts as the nearer end and NaN as 0 (refusing them is the task of the request's validation).
TX_HD constexpr std::uint32_t dropout_threshold(double p) {
  if (!(p > 0.0)) return 0;
  if (p >= 1.0) return 65536;
  const double scaled = 65536.0 * p;
  // Not floor(scaled + 0.5): that sum rounds, and the number just below one half would become 1.
  const auto whole = static_cast<std::uint32_t>(scaled);
  return whole + (scaled - whole >= 0.5 ? 1u : 0u);
}

/// Whether joint unit `h >= 0` of node (t, u) is kept when units are dropped with probability `p`.
TX_HD constexpr bool dropout_keep(std::uint64_t seed, std::int64_t utterance_id, std::int64_t t,
                                  std::int64_t u, std::int64_t h, double p) {
  return dropout_lanes(seed, utterance_id, t, u, h / 8).lanes[h % 8] >= dropout_threshold(p);
}

}  // namespace transducer
