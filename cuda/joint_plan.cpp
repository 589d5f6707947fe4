// SPDX-License-Identifier: Apache-2.0
//
// Sizes of the joint source's scratch: pure host code.
#include <algorithm>

#include "cuda/joint.hpp"
#include "cuda/joint_memory.hpp"
#include "reference/core/workspace.hpp"

namespace transducer::cuda {
namespace {

constexpr std::int64_t kTileColumns = 256;
constexpr std::int64_t kBlocks = 132;      // that a large device runs at a time
constexpr std::int64_t kSlack = 64 * 256;  // alignment of the pieces

std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

std::int64_t shared_bytes(const JointShape& shape, const JointSizes& sizes) {
  return sizes.padded_columns *
             (sizes.padded_hidden * shape.planes * shape.element_bytes + shape.real_bytes) +
         kSlack;
}

void size_scores(const JointShape& shape, std::int64_t bytes, JointSizes& sizes) {
  const std::int64_t slot =
      shape.tile_rows * sizes.padded_hidden * shape.planes * shape.element_bytes;
  const std::int64_t fixed = shared_bytes(shape, sizes);
  const std::int64_t tiles = std::max<std::int64_t>(
      1, (shape.frames * shape.rows + shape.tile_rows - 1) / shape.tile_rows);
  sizes.slots = static_cast<int>(
      std::clamp<std::int64_t>((bytes - fixed) / slot, 0, std::min(tiles, kBlocks)));
  sizes.scores_bytes = fixed + std::max(sizes.slots, 1) * slot;
}

void size_gradient(const JointShape& shape, std::int64_t bytes, JointSizes& sizes) {
  // Large vocabularies get wider ranges: their dW has tiles enough without splitting a chunk's rows.
  const std::int64_t widest = shape.columns > 4096 ? 2048 : 1024;
  sizes.range = round_up(std::min(shape.columns, widest), 32);
  const std::int64_t weight_sums =
      sizes.padded_columns * (sizes.padded_hidden + 1) * shape.real_bytes;
  const std::int64_t tiles = round_up(sizes.range, 128) / 128 *
                             (round_up(sizes.padded_hidden, kTileColumns) / kTileColumns);
  const std::int64_t carry = 2 * shape.rows * sizes.padded_hidden * shape.real_bytes;
  const std::int64_t before = shared_bytes(shape, sizes) + carry;
  sizes.splits = static_cast<int>(std::clamp<std::int64_t>(
      std::min(kBlocks / tiles, (bytes - before) / 4 / weight_sums), 1, 16));
  const std::int64_t row =
      shape.planes * shape.element_bytes * (sizes.padded_hidden + sizes.range) +
      shape.real_bytes * (sizes.padded_hidden + 2 * shape.groups + shape.taps + 1) + 12;
  const std::int64_t most = round_up(shape.frames * shape.rows, shape.tile_rows);
  const std::int64_t tail = round_up(shape.rows, shape.tile_rows);
  // Chunk boundaries take 8 bytes a chunk; a chunk of at least U+1 rows holds a whole frame.
  const std::int64_t fixed = before + sizes.splits * weight_sums + 16 * (shape.frames + 2);
  std::int64_t capacity = (bytes - fixed) / row / shape.tile_rows * shape.tile_rows;
  capacity = std::min({capacity, most + tail, std::int64_t{1} << 16});
  if (capacity < 2 * tail) {
    sizes.chunk_rows = 0;
    sizes.gradient_bytes = fixed + 2 * tail * row;
    return;
  }
  sizes.capacity = capacity;
  sizes.chunk_rows = capacity - tail;
  sizes.chunks = shape.frames * shape.rows / sizes.chunk_rows + 1;
  sizes.gradient_bytes = fixed + capacity * row;
}

}  // namespace

JointSizes joint_sizes(const JointShape& shape, std::int64_t bytes) {
  JointSizes sizes;
  sizes.padded_columns = round_up(shape.columns, kTileColumns);
  sizes.padded_hidden = std::max<std::int64_t>(32, round_up(shape.hidden, 32));
  size_scores(shape, bytes, sizes);
  size_gradient(shape, bytes, sizes);
  return sizes;
}

std::int64_t joint_scratch_bytes(const LossShape& shape, std::int64_t available, bool strict) {
  JointShape joint{.frames = checked_product(shape.batch, shape.frames),
                   .rows = shape.labels + 1,
                   .columns = shape.columns,
                   .hidden = shape.hidden,
                   .groups = std::max(shape.groups, 1),
                   .taps = shape.taps};
  if (shape.dtype == DType::float64) {
    joint.element_bytes = 8;
    joint.real_bytes = 8;
    joint.tile_rows = 32;
  } else if (shape.dtype == DType::float32) {
    joint.planes = 3;
  }
  JointSizes sizes = joint_sizes(joint, available);
  const auto fits = [&] { return sizes.slots > 0 && (!shape.gradient || sizes.chunk_rows > 0); };
  if (!strict) {
    for (std::int64_t bytes = std::int64_t{32} << 20; !fits(); bytes *= 2) {
      sizes = joint_sizes(joint, bytes);
    }
  }
  const auto needed = [&](const JointSizes& of) {
    return shape.gradient ? std::max(of.scores_bytes, of.gradient_bytes) : of.scores_bytes;
  };
  std::int64_t bytes = needed(sizes);
  check(fits(), "plan_workspace: the joint source of U = ", shape.labels, ", K = ", shape.columns,
        ", H = ", shape.hidden, " needs ", bytes,
        " bytes of scratch, but workspace_limit leaves it ", std::max<std::int64_t>(available, 0),
        "; raise workspace_limit");
  if (dtype_bytes(shape.dtype) == 2) {
    // The shape tells E's type alone: if W or P is wider, the call runs in three planes.
    joint.planes = 3;
    const JointSizes wide = joint_sizes(joint, bytes);
    if (wide.slots == 0 || (shape.gradient && wide.chunk_rows == 0)) {
      bytes = std::max(bytes, strict ? std::min(needed(wide), available) : needed(wide));
    }
  }
  return bytes;
}

}  // namespace transducer::cuda
