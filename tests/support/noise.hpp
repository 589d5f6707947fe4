// SPDX-License-Identifier: Apache-2.0
//
// Repeatable numbers for tests that need many and do not care which, and a batch made of them.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/support/fixture.hpp"

namespace transducer::testing {

/// `count` numbers in [-2, 2), the same for the same seed (a 64-bit linear congruential generator,
/// constants of Knuth's MMIX).
inline std::vector<double> noise(std::int64_t count, std::uint64_t seed) {
  std::vector<double> values(static_cast<std::size_t>(count));
  std::uint64_t state = seed * 2862933555777941757u + 3037000493u;
  for (double& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<double>(state >> 11) * 0x1p-51 - 2.0;
  }
  return values;
}

/// A batch of noise; labels run through 1, 2, ... below V, lengths are full.
inline DenseBatch noise_batch(const VariantTable& table, std::int64_t B, std::int64_t T,
                              std::int64_t U, std::int64_t K, std::uint64_t seed = 1) {
  DenseBatch batch;
  batch.B = B;
  batch.T = T;
  batch.U = U;
  batch.K = K;
  batch.variant = table;
  batch.logits = noise(B * T * (U + 1) * K, seed);
  const std::int64_t vocabulary = K - table.heads;
  for (std::int64_t i = 0; i < B * U; ++i) batch.targets.push_back((i + 1) % vocabulary);
  return batch;
}

}  // namespace transducer::testing
