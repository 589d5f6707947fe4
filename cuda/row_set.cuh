// SPDX-License-Identifier: Apache-2.0
//
// RowSet: which lattice nodes are worked on, on the device. A bit per node, an exclusive prefix sum of the set
// bits per frame, and their total; so a node's row number is one popcount away, and nothing that depends on
// lengths or on occupancy is ever needed by the host.
//
//   reachable   t < T_b, u <= U_b, inside the band: the rows of the forward
//   kept        nodes whose occupancy is above the certified threshold: the rows of the backward;
//               every valid node of an utterance whose cost is NaN
//
// Bytes: 4 ceil((U + 1) / 32) + 8 per frame.
#pragma once

#include <cstdint>

#include "reference/core/macros.hpp"

namespace transducer::cuda {

struct RowSet {
  std::uint32_t* bits = nullptr;  // [B, T, words]
  std::int64_t* offset =
      nullptr;                  // [B T + 1]: rows before frame (b, t); the last entry is the count
  int frames = 0;               // T
  int words = 0;                ///< ceil((U + 1) / 32)
  std::int64_t num_frames = 0;  ///< B T

  TX_HD std::int64_t frame(std::int64_t b, std::int64_t t) const { return b * frames + t; }
#if defined(__CUDACC__)
  __device__ std::int64_t count() const { return offset[num_frames]; }
  __device__ bool contains(std::int64_t frame, int u) const {
    return (bits[frame * words + u / 32] >> (u % 32) & 1u) != 0;
  }
  /// Row number of a node that is in the set: rows are ordered by b, t, u.
  __device__ std::int64_t row_of(std::int64_t frame, int u) const {
    const std::uint32_t* word = bits + frame * words;
    std::int64_t row = offset[frame];
    for (int w = 0; w < u / 32; ++w) row += __popc(word[w]);
    return row + __popc(word[u / 32] & ((1u << (u % 32)) - 1u));
  }
#endif
};

}  // namespace transducer::cuda
