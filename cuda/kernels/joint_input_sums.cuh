// SPDX-License-Identifier: Apache-2.0
//
// Last phase of a chunk of the joint source's backward: dX times mask and act', summed over u into dE and over t
// into dP.
//
// Approach: a warp takes 128 units of a frame's dE, or of a dP of which it walks the chunk's frames upwards, so
// that every sum has one order; a dP whose utterance goes on in the next chunk is carried over. act' and mask
// are made again from E and P. Cost: dX is read twice.
#pragma once

#include "cuda/kernels/joint_gradient_params.cuh"

namespace transducer::cuda {

template <class Element>
struct InputSums {
  using Real = RealOf<Element>;

  const JointGradientParams<Element>& p;
  const Chunk& chunk;

  static constexpr int kUnits = 4;  // of a lane
  static constexpr int kAhead = 8;  // rows whose loads are under way together
  static constexpr int kWarpUnits = 32 * kUnits;

  /// Adds rows local[0 .. n) to a sum, in their order: dX times mask and act', times `factor`. The others of the
  /// kAhead rows must be readable too.
  __device__ __forceinline__ void add_rows(int n, const int (&local)[kAhead],
                                           const NodeAt (&at)[kAhead], int first, bool to_encoder,
                                           const Real (&own)[kUnits], Real inverse, Real factor,
                                           Real (&sum)[kUnits]) {
    struct alignas(16) Units {
      Real unit[kUnits];
    };
    Units flow[kAhead];
    Real other[kAhead][kUnits];
    Piece pieces[kAhead];
#pragma unroll
    for (int r = 0; r < kAhead; ++r) {
      flow[r] = *reinterpret_cast<const Units*>(
          p.hidden_gradient + static_cast<std::int64_t>(local[r]) * p.padded_hidden + first);
      pieces[r] = {at[r].b, to_encoder ? at[r].u : at[r].t, first};
    }
    load_pieces(to_encoder ? p.joint.predictor : p.joint.encoder, pieces, p.joint.hidden, other);
    // Slopes of all rows at once: one branch, and little code.
    Real slope[kAhead * kUnits];
#pragma unroll
    for (int r = 0; r < kAhead; ++r) {
      const Real mask = to_encoder ? predictor_factor<Real>(p.joint, at[r].b, at[r].u) : factor;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        slope[r * kUnits + i] =
            to_encoder ? own[i] + mask * other[r][i] : other[r][i] + mask * own[i];
      }
    }
    activation_slopes(p.joint.activation, slope);
#pragma unroll
    for (int r = 0; r < kAhead; ++r) {
      if (r >= n) continue;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) flow[r].unit[i] *= inverse * slope[r * kUnits + i];
      drop_units(p.joint, at[r], first, flow[r].unit);
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        sum[i] += to_encoder ? flow[r].unit[i] : factor * flow[r].unit[i];
      }
    }
  }

  /// This lane's units of one row of E or P.
  __device__ __forceinline__ void load_own(const UnitArray& array, int i, int j, int first,
                                           Real (&own)[kUnits]) {
    const Piece at[1] = {{i, j, first}};
    Real units[1][kUnits];
    load_pieces(array, at, p.joint.hidden, units);
#pragma unroll
    for (int n = 0; n < kUnits; ++n) own[n] = units[0][n];
  }

  __device__ void write_units(const TensorRef& to, int i, int j, int first,
                              const Real (&sum)[kUnits]) {
    if (to.rank < 0) return;
    const std::int64_t row = i * to.strides[0] + j * to.strides[1];
#pragma unroll
    for (int n = 0; n < kUnits; ++n) {
      if (first + n < p.joint.hidden) {
        store_unit(to, row + (first + n) * to.strides[2], sum[n]);
      }
    }
  }

  __device__ void encoder_frame(std::int64_t frame, int first, Real inverse) {
    const int lane32 = static_cast<int>(threadIdx.x) % 32;
    const int b = static_cast<int>(frame / p.call.frames);
    const int t = static_cast<int>(frame - static_cast<std::int64_t>(b) * p.call.frames);
    const int local = static_cast<int>(p.rows.offset[frame] - chunk.row_begin);
    const int n = static_cast<int>(p.rows.offset[frame + 1] - p.rows.offset[frame]);
    const bool active = first < p.padded_hidden;
    Real own[kUnits] = {};
    Real sum[kUnits] = {};
    if (active && n > 0) load_own(p.joint.encoder, b, t, first, own);
    for (int base = 0; base < n; base += 32) {
      const int mine =
          base + lane32 < n ? p.row_u[chunk.parity * p.capacity + local + base + lane32] : 0;
      const int here = min(32, n - base);
#pragma unroll 1
      for (int r = 0; r < here; r += kAhead) {
        int rows[kAhead];
        NodeAt at[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int there = min(r + i, here - 1);
          rows[i] = local + base + there;
          at[i] = NodeAt{b, t, __shfl_sync(~0u, mine, there)};
        }
        if (active) {
          add_rows(min(kAhead, here - r), rows, at, first, true, own, inverse, Real(1), sum);
        }
      }
    }
    if (active) write_units(p.encoder_gradient, b, t, first, sum);
  }

  /// Row of the chunk that node u of a frame has, -1 if it is not kept. Loads do not wait for each other.
  __device__ __forceinline__ int chunk_row(std::int64_t frame, int u) const {
    const std::uint32_t* word = p.rows.bits + frame * p.rows.words;
    const std::uint32_t bits = word[u / 32];
    int before = static_cast<int>(p.rows.offset[frame] - chunk.row_begin);
#pragma unroll 4
    for (int w = 0; w < u / 32; ++w) before += __popc(word[w]);
    before += __popc(bits & ((1u << (u % 32)) - 1u));
    return (bits >> (u % 32) & 1u) != 0 ? before : -1;
  }

  __device__ void predictor_row(int b, int u, int first, Real inverse) {
    const int lane32 = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t start = static_cast<std::int64_t>(b) * p.call.frames;
    const std::int64_t begin = max(chunk.frames_begin, start);
    const std::int64_t end = min(chunk.frames_end, start + p.call.frames);
    const bool active = first < p.padded_hidden;
    const std::int64_t row_units = static_cast<std::int64_t>(p.call.rows()) * p.padded_hidden;
    Real* carry = p.carry + static_cast<std::int64_t>(u) * p.padded_hidden + first;
    Real own[kUnits] = {};
    Real sum[kUnits] = {};
    Real factor = 0;
    if (active) {
      load_own(p.joint.predictor, b, u, first, own);
      factor = predictor_factor<Real>(p.joint, b, u);
      if (chunk.frames_begin > start) {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) sum[i] = carry[chunk.parity * row_units + i];
      }
    }
    // Rows of kGroupsAhead x 32 frames are looked up together.
    constexpr int kGroupsAhead = 4;
    for (std::int64_t base = begin; base < end; base += 32 * kGroupsAhead) {
      int mine[kGroupsAhead];
      unsigned kept[kGroupsAhead];
#pragma unroll
      for (int g = 0; g < kGroupsAhead; ++g) {
        const std::int64_t frame = base + 32 * g + lane32;
        mine[g] = frame < end ? chunk_row(frame, u) : -1;
      }
#pragma unroll
      for (int g = 0; g < kGroupsAhead; ++g) kept[g] = __ballot_sync(~0u, mine[g] >= 0);
#pragma unroll 1
      for (int g = 0; g < kGroupsAhead; ++g) {
        const int rows_here = g == 0 ? mine[0] : g == 1 ? mine[1] : g == 2 ? mine[2] : mine[3];
        unsigned left = g == 0 ? kept[0] : g == 1 ? kept[1] : g == 2 ? kept[2] : kept[3];
#pragma unroll 1
        while (left != 0) {
          int rows[kAhead];
          NodeAt at[kAhead];
          int n = 0;
          int bit = 0;
#pragma unroll
          for (int i = 0; i < kAhead; ++i) {
            bit = left != 0 ? __ffs(static_cast<int>(left)) - 1 : bit;
            n += left != 0 ? 1 : 0;
            left &= left - 1;
            rows[i] = __shfl_sync(~0u, rows_here, bit);
            at[i] = NodeAt{b, static_cast<int>(base - start) + 32 * g + bit, u};
          }
          if (active) add_rows(n, rows, at, first, false, own, inverse, factor, sum);
        }
      }
    }
    if (!active) return;
    if (end == start + p.call.frames) {
      write_units(p.predictor_gradient, b, u, first, sum);
    } else {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) carry[(1 - chunk.parity) * row_units + i] = sum[i];
    }
  }

  __device__ void run() {
    const Real inverse = static_cast<Real>(1.0 / static_cast<double>(*p.power));
    const int pieces = (p.padded_hidden + kWarpUnits - 1) / kWarpUnits;
    const int warps = static_cast<int>(gridDim.x) * (kThreads / 32);
    const int me = static_cast<int>(threadIdx.x) / 32 * static_cast<int>(gridDim.x) +
                   static_cast<int>(blockIdx.x);
    const int lane32 = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t encoder_items = (chunk.frames_end - chunk.frames_begin) * pieces;
    const int first_b = static_cast<int>(chunk.frames_begin / p.call.frames);
    const int last_b = static_cast<int>((chunk.frames_end - 1) / p.call.frames);
    const std::int64_t predictor_items =
        chunk.frames_end > chunk.frames_begin
            ? static_cast<std::int64_t>(last_b - first_b + 1) * p.call.rows() * pieces
            : 0;
    for (std::int64_t item = me; item < encoder_items + predictor_items; item += warps) {
      const bool predictor = item < predictor_items;  // the longer ones first
      const std::int64_t index = predictor ? item : item - predictor_items;
      const int first = static_cast<int>(index % pieces) * kWarpUnits + lane32 * kUnits;
      const std::int64_t row = index / pieces;
      if (predictor) {
        const int b = first_b + static_cast<int>(row / p.call.rows());
        predictor_row(b, static_cast<int>(row % p.call.rows()), first, inverse);
      } else {
        encoder_frame(chunk.frames_begin + row, first, inverse);
      }
    }
  }
};

}  // namespace transducer::cuda
