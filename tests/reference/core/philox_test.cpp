// SPDX-License-Identifier: Apache-2.0
//
// Philox4x32-10 against its published known answers, and the dropout rule against literals worked
// by hand from the same answers.
//
// Known answers: file tests/kat_vectors of the Random123 distribution (D. E. Shaw Research, the
// authors of the paper cited in philox.hpp), the three lines "philox4x32 10". Columns there:
// counter, key, expected. The third counter and key are digits of pi.
#include "reference/core/philox.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace transducer {
namespace {

using Words = std::array<std::uint32_t, 4>;
using Keep = std::array<bool, 8>;

constexpr Words run(Words counter, std::array<std::uint32_t, 2> key) {
  const Philox4x32 out = philox4x32_10(Philox4x32{{counter[0], counter[1], counter[2], counter[3]}},
                                       PhiloxKey{{key[0], key[1]}});
  return {out.words[0], out.words[1], out.words[2], out.words[3]};
}

std::vector<int> lanes(std::uint64_t seed, std::int64_t id, std::int64_t t, std::int64_t u,
                       std::int64_t block) {
  const DropoutLanes out = dropout_lanes(seed, id, t, u, block);
  return {out.lanes, out.lanes + 8};
}

Keep keep(std::uint64_t seed, std::int64_t id, std::int64_t t, std::int64_t u, std::int64_t first_h,
          double p) {
  Keep kept{};
  for (std::size_t i = 0; i < kept.size(); ++i) {
    kept[i] = dropout_keep(seed, id, t, u, first_h + static_cast<std::int64_t>(i), p);
  }
  return kept;
}

TEST(Philox, KnownAnswerZeros) {
  EXPECT_EQ(run({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
}

TEST(Philox, KnownAnswerOnes) {
  EXPECT_EQ(run({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Philox, KnownAnswerPi) {
  EXPECT_EQ(run({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, IsKnownAtCompileTime) {
  static_assert(run({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  static_assert(dropout_lanes(0, 0, 0, 0, 0).lanes[0] == 0xe8d5);
  static_assert(dropout_keep(0, 0, 0, 0, 0, 0.5));
}

TEST(Dropout, LanesAreWordsInOrderLowHalfFirst) {
  // zeros: 6627e8d5 e169c58d bc57ac4c 9b00dbd8
  EXPECT_EQ(lanes(0, 0, 0, 0, 0), (std::vector<int>{0xe8d5, 0x6627, 0xc58d, 0xe169,  //
                                                    0xac4c, 0xbc57, 0xdbd8, 0x9b00}));
}

TEST(Dropout, CounterIsBlockLabelFrameUtteranceAndKeyIsSeedLowWordFirst) {
  // pi: counter (h / 8, u, t, id) = 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0.
  // All four differ, so any other order of the counter or of the key's words gives other lanes.
  EXPECT_EQ(lanes(0x299f31d0a4093822, 0x03707344, 0x13198a2e, 0x85a308d3, 0x243f6a88),
            (std::vector<int>{0xfe09, 0xd16c, 0xcceb, 0x94fd, 0xe420, 0x5001, 0x6ea1, 0x2412}));
}

TEST(Dropout, UtteranceIdCountsByItsLow32Bits) {
  // ones: 408f276d 41c83b0e a20bc7c6 6d5451fd; an id of -1 is ffffffff in its low word.
  const std::vector<int> ones = {0x276d, 0x408f, 0x3b0e, 0x41c8, 0xc7c6, 0xa20b, 0x51fd, 0x6d54};
  EXPECT_EQ(lanes(~0ull, -1, 0xffffffff, 0xffffffff, 0xffffffff), ones);
  EXPECT_EQ(lanes(~0ull, 0x5ffffffff, 0xffffffff, 0xffffffff, 0xffffffff), ones);
  EXPECT_NE(lanes(~0ull, 0x0fffffff, 0xffffffff, 0xffffffff, 0xffffffff), ones);
}

TEST(Dropout, KeepsLanesAtOrAboveTheThreshold) {
  // p = 0.7: 65536 p = 45875.2, threshold 45875 = b333.
  //   lanes  e8d5 6627 c58d e169 ac4c bc57 dbd8 9b00
  //   kept   yes  no   yes  yes  no   yes  yes  no
  EXPECT_EQ(keep(0, 0, 0, 0, 0, 0.7), (Keep{true, false, true, true, false, true, true, false}));
  // p = 0.5: threshold 8000.  lanes fe09 d16c cceb 94fd e420 5001 6ea1 2412
  EXPECT_EQ(keep(0x299f31d0a4093822, 0x03707344, 0x13198a2e, 0x85a308d3, 8ll * 0x243f6a88, 0.5),
            (Keep{true, true, true, true, true, false, false, false}));
}

TEST(Dropout, ALaneEqualToTheThresholdIsKept) {
  // Lane 0 of the zeros is e8d5 = 59605, lane 1 is 6627 = 26151.
  EXPECT_TRUE(dropout_keep(0, 0, 0, 0, 0, 59605 / 65536.0));
  EXPECT_FALSE(dropout_keep(0, 0, 0, 0, 0, 59606 / 65536.0));
  EXPECT_TRUE(dropout_keep(0, 0, 0, 0, 1, 26151 / 65536.0));
  EXPECT_FALSE(dropout_keep(0, 0, 0, 0, 1, 26152 / 65536.0));
}

TEST(Dropout, ThresholdIsTheNearestInteger) {
  EXPECT_EQ(dropout_threshold(0.0), 0u);
  EXPECT_EQ(dropout_threshold(0.1), 6554u);  // 6553.6
  EXPECT_EQ(dropout_threshold(0.25), 16384u);
  EXPECT_EQ(dropout_threshold(0.7), 45875u);                           // 45875.2
  EXPECT_EQ(dropout_threshold(0.5 / 65536), 1u);                       // a half goes up
  EXPECT_EQ(dropout_threshold(1.5 / 65536), 2u);                       // and so does the next
  EXPECT_EQ(dropout_threshold(std::nextafter(0.5, 0.0) / 65536), 0u);  // floor(x + 0.5) says 1
  EXPECT_EQ(dropout_threshold(1.0), 65536u);
  EXPECT_EQ(dropout_threshold(std::nextafter(1.0, 0.0)), 65536u);
  for (const double p : {0.05, 0.15, 0.2, 0.3, 1.0 / 3.0, 0.9, 0.999}) {
    EXPECT_EQ(dropout_threshold(p), static_cast<std::uint32_t>(std::lround(65536.0 * p))) << p;
  }
}

TEST(Dropout, ThresholdStaysInRangeWhateverIsGiven) {
  EXPECT_EQ(dropout_threshold(-0.5), 0u);
  EXPECT_EQ(dropout_threshold(2.0), 65536u);
  EXPECT_EQ(dropout_threshold(HUGE_VAL), 65536u);
  EXPECT_EQ(dropout_threshold(-HUGE_VAL), 0u);
  // At compile time, where converting a NaN to an integer would be an error and not a lucky 0.
  static_assert(dropout_threshold(std::numeric_limits<double>::quiet_NaN()) == 0);
}

TEST(Dropout, ProbabilityZeroKeepsAllAndOneKeepsNone) {
  for (std::int64_t t = 0; t < 64; ++t) {
    for (std::int64_t h = 0; h < 1024; ++h) {
      ASSERT_TRUE(dropout_keep(1234, 5, t, 3, h, 0.0)) << t << " " << h;
      ASSERT_FALSE(dropout_keep(1234, 5, t, 3, h, 1.0)) << t << " " << h;
    }
  }
}

TEST(Dropout, ShareThatIsKeptIsOneMinusP) {
  // 40 frames, 25 positions, 512 units: 512,000 draws in all, 64,000 for each lane. Each count is
  // binomial with mean n q; it must lie within 5 standard deviations.
  constexpr std::uint64_t kSeed = 0x0123456789abcdef;
  for (const double p : {0.05, 0.1, 0.5, 0.9}) {
    const std::uint32_t threshold = dropout_threshold(p);
    std::array<double, 8> kept{};
    for (std::int64_t t = 0; t < 40; ++t) {
      for (std::int64_t u = 0; u < 25; ++u) {
        for (std::int64_t block = 0; block < 64; ++block) {
          const DropoutLanes drawn = dropout_lanes(kSeed, 7, t, u, block);
          for (std::size_t i = 0; i < 8; ++i) kept[i] += drawn.lanes[i] >= threshold ? 1.0 : 0.0;
        }
      }
    }
    const double q = 1.0 - threshold / 65536.0;
    double total = 0.0;
    for (const double count : kept) {
      total += count;
      EXPECT_NEAR(count, 64000 * q, 5 * std::sqrt(64000 * q * (1 - q))) << "p = " << p;
    }
    EXPECT_NEAR(total, 512000 * q, 5 * std::sqrt(512000 * q * (1 - q))) << "p = " << p;
  }
}

TEST(Dropout, EveryCoordinateChangesTheMask) {
  const std::set<std::vector<int>> different = {
      lanes(1, 2, 3, 4, 5), lanes(9, 2, 3, 4, 5), lanes(1 + (1ull << 32), 2, 3, 4, 5),
      lanes(1, 9, 3, 4, 5), lanes(1, 2, 9, 4, 5), lanes(1, 2, 3, 9, 5),
      lanes(1, 2, 3, 4, 9), lanes(1, 2, 4, 3, 5), lanes(1, 3, 2, 4, 5),
  };
  EXPECT_EQ(different.size(), 9u);
  EXPECT_EQ(lanes(1, 2, 3, 4, 5), lanes(1, 2, 3, 4, 5));
}

}  // namespace
}  // namespace transducer
