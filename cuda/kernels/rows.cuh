// SPDX-License-Identifier: Apache-2.0
//
// Fills a RowSet: a bit per node, then the exclusive prefix sum of the set bits per frame in two launches.
//
//   kept_rows       nodes whose occupancy reaches the utterance's threshold; every valid node where the cost
//                   is NaN
//   reachable_rows  t < T_b, u <= U_b, inside the band
#pragma once

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "cuda/device/tensor.cuh"
#include "cuda/kernels/posteriors.cuh"

namespace transducer::cuda {

/// Sets the bits of a frame from keep(u), and its count at its place in `offset`.
template <class Keep>
__device__ void fill_frame(const RowSet& rows, std::int64_t frame, int labels, Keep keep) {
  std::int64_t count = 0;
  for (int w = 0; w < rows.words; ++w) {
    const int u = 32 * w + static_cast<int>(threadIdx.x);
    const unsigned bits = __ballot_sync(~0u, u <= labels && keep(u));
    if (threadIdx.x == 0) rows.bits[frame * rows.words + w] = bits;
    count += __popc(bits);
  }
  if (threadIdx.x == 0) rows.offset[frame] = count;
}

template <class Real>
__global__ void __launch_bounds__(32 * kFrameWarps)
    kept_rows_kernel(const __grid_constant__ LatticeParams<Real> p) {
  const CallView& call = p.call;
  for_each_frame(call.frames, [&](int b, int t) {
    const int state = p.memory.state[b];
    const double threshold = p.memory.threshold[b];
    const bool live = t < call.frames_of(b) && state != kInfeasible;
    const int labels = live ? call.labels_of(b) : -1;
    fill_frame(p.memory.kept, p.memory.kept.frame(b, t), labels, [&](int u) {
      if (state == kPoisoned) return true;
      const Real occupancy = occupancy_of(call, p.memory.arcs, call.node(b, t, u));
      return occupancy > Real(0) && static_cast<double>(occupancy) >= threshold;
    });
  });
}

/// Arcs from a gradient of the complete weights [B, T, U+1, A], and the rows where one is not 0.
template <class Real>
__global__ void __launch_bounds__(32 * kFrameWarps)
    weights_gradient_kernel(const __grid_constant__ LatticeParams<Real> p,
                            const __grid_constant__ TensorRef gradient) {
  const CallView& call = p.call;
  for_each_frame(call.frames, [&](int b, int t) {
    if (t == 0 && threadIdx.x == 0) p.memory.state[b] = kFeasible;
    const int labels = t < call.frames_of(b) ? call.labels_of(b) : -1;
    fill_frame(p.memory.kept, p.memory.kept.frame(b, t), labels, [&](int u) {
      bool any = false;
      for (int a = 0; a < call.plan.num_arcs; ++a) {
        Real& arc = p.memory.arcs[a * call.plane + call.node(b, t, u)];
        const bool exists = arc != Real(-INFINITY);
        arc = exists ? static_cast<Real>(-load_real(gradient, tensor_offset(gradient, b, t, u, a)))
                     : Real(0);
        any = any || arc != Real(0);
      }
      return any;
    });
  });
}

struct ReachableParams {
  CallView call;
  RowSet rows;
};

static __global__ void __launch_bounds__(32 * kFrameWarps)
    reachable_rows_kernel(const __grid_constant__ ReachableParams p) {
  const CallView& call = p.call;
  for_each_frame(call.frames, [&](int b, int t) {
    const int frames = call.frames_of(b);
    fill_frame(p.rows, p.rows.frame(b, t), t < frames ? call.labels_of(b) : -1,
               [&](int u) { return call.is_allowed(b, t, u, frames); });
  });
}

/// Prefix sums inside blocks of kFramesPerScan frames; the blocks' totals go to `block_rows`.
static __global__ void __launch_bounds__(kFramesPerScan)
    scan_frames_kernel(RowSet rows, std::int64_t* block_rows) {
  using Scan = cub::BlockScan<std::int64_t, kFramesPerScan>;
  __shared__ typename Scan::TempStorage storage;
  const std::int64_t frame = static_cast<std::int64_t>(blockIdx.x) * kFramesPerScan + threadIdx.x;
  const bool exists = frame < rows.num_frames;
  std::int64_t before = 0;
  std::int64_t total = 0;
  Scan(storage).ExclusiveSum(exists ? rows.offset[frame] : 0, before, total);
  if (exists) rows.offset[frame] = before;
  if (threadIdx.x == 0) block_rows[blockIdx.x] = total;
}

/// Adds to each block what lies before it; the last one also writes the count.
static __global__ void __launch_bounds__(kFramesPerScan)
    add_blocks_kernel(RowSet rows, const std::int64_t* block_rows) {
  using Reduce = cub::BlockReduce<std::int64_t, kFramesPerScan>;
  __shared__ typename Reduce::TempStorage storage;
  __shared__ std::int64_t before;
  std::int64_t sum = 0;
  for (unsigned i = threadIdx.x; i < blockIdx.x; i += kFramesPerScan) sum += block_rows[i];
  sum = Reduce(storage).Sum(sum);
  if (threadIdx.x == 0) before = sum;
  __syncthreads();
  const std::int64_t frame = static_cast<std::int64_t>(blockIdx.x) * kFramesPerScan + threadIdx.x;
  if (frame < rows.num_frames) rows.offset[frame] += before;
  if (blockIdx.x + 1 == gridDim.x && threadIdx.x == 0) {
    rows.offset[rows.num_frames] = before + block_rows[blockIdx.x];
  }
}

}  // namespace transducer::cuda
