// SPDX-License-Identifier: Apache-2.0
//
// The shape of every kernel over lattice nodes: a block takes 16 frames of one utterance, a warp a frame at a
// time, its lanes the frame's nodes. Frames past the utterance's length belong to some block too, so that
// padding can be written; launches depend on B and T alone.
#pragma once

#include <cstdint>

namespace transducer::cuda {

inline constexpr int kFramesPerBlock = 16;
inline constexpr int kFrameWarps = 8;

/// Blocks for `frames` frames of `batch` utterances, to be launched with frame_threads().
inline unsigned frame_blocks(std::int64_t batch, std::int64_t frames) {
  return static_cast<unsigned>(batch * ((frames + kFramesPerBlock - 1) / kFramesPerBlock));
}

#if defined(__CUDACC__)
inline dim3 frame_threads() { return {32, kFrameWarps}; }

/// Calls body(b, t) for the frames of this warp.
template <class Body>
__device__ __forceinline__ void for_each_frame(int frames, Body body) {
  const int chunks = (frames + kFramesPerBlock - 1) / kFramesPerBlock;
  const int b = static_cast<int>(blockIdx.x) / chunks;
  const int first = (static_cast<int>(blockIdx.x) - b * chunks) * kFramesPerBlock;
  for (int t = first + static_cast<int>(threadIdx.y); t < min(first + kFramesPerBlock, frames);
       t += kFrameWarps) {
    body(b, t);
  }
}
#endif

}  // namespace transducer::cuda
