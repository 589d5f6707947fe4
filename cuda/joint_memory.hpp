// SPDX-License-Identifier: Apache-2.0
//
// How the joint source divides its scratch. Sizes follow from the shape, the width of its elements and the
// bytes there are; the same function serves the plan, which only adds them up, and the launch, which also
// hands out pointers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace transducer::cuda {

/// What decides the sizes.
struct JointShape {
  std::int64_t frames = 0;   // B T
  std::int64_t rows = 0;     // U+1
  std::int64_t columns = 0;  // K
  std::int64_t hidden = 0;   // H
  int element_bytes = 2;
  int planes = 1;
  int real_bytes = 4;
  int tile_rows = 128;
  int groups = 1;
  int taps = 2;
};

struct JointSizes {
  std::int64_t padded_columns = 0;  // K to a multiple of 256
  std::int64_t padded_hidden = 0;   // H to a multiple of 32
  // Scores.
  int slots = 0;  ///< blocks that have room for a tile of h
  // Gradient.
  std::int64_t range = 0;       // columns of G at a time
  int splits = 1;               // of a chunk's rows in dW
  std::int64_t chunk_rows = 0;  // a chunk ends with the frame in which it reaches them
  std::int64_t capacity = 0;    // rows of a chunk's arrays
  std::int64_t chunks = 0;      // at most
  std::int64_t scores_bytes = 0;
  std::int64_t gradient_bytes = 0;
};

/// The largest pieces that fit into `bytes` and are of use; chunk_rows = 0 or slots = 0 where nothing fits.
JointSizes joint_sizes(const JointShape& shape, std::int64_t bytes);

/// Hands out aligned pieces of a region, or counts them if `base` is null.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(std::int64_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ +=
        (count * static_cast<std::int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  std::int64_t used() const { return used_; }

 private:
  static constexpr std::int64_t kAlignment = 256;
  std::byte* base_;
  std::int64_t used_ = 0;
};

}  // namespace transducer::cuda
