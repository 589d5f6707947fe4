// SPDX-License-Identifier: Apache-2.0
//
// Alpha and beta of any arc table in strips; both sweeps in one launch. With tau counting rows from where a
// sweep starts (alpha: t = tau; beta: t = T - tau) and c counting u from there (alpha: u = c; beta: u = U - c),
// both are one recursion over rows tau = 0 ... T:
//
//   value(tau, c) = boundary(tau) [c = 0] + sum over arcs w value(tau - dt, c - du)
//
// where w is the weight of the arc that joins the two nodes: alpha's lies at (t - dt, u - du), beta's at (t, u).
//
// Purpose: tables beyond the two moves of lattice_strips.cuh, and starts and ends of any weight. Approach: a
// strip of 32 c as there, lane i being i rows behind lane 0, so an arc comes from a lane or its neighbour, dt +
// du steps ago: the ring of states is the history. A block is six warps: the recursion, four that fetch weights
// and split them into mantissa and exponent, one for the border and finished rows. Constraint: shared memory,
// 16 KiB + 12 KiB an arc; longer or wider tables take the diagonals of lattice.cuh.
#pragma once

#include "cuda/kernels/lattice_strips.cuh"

namespace transducer::cuda {

inline constexpr int kFetchers = 4;
inline constexpr int kTableThreads = 32 * (kFetchers + 2);
inline constexpr int kLongestArc = 40;  ///< dt + du that the ring of states serves

struct TableParams {
  CallView call;
  Memory<float> memory;
  float2* alpha;
  float2* beta;
  unsigned long long* border;  // [B, 2, strips, border_length(T + 1)], all ones, like the ticket
  unsigned* ticket;            // -1 at the start
  int strips;
  int sweeps;
  int num_far;  ///< arcs with dt + du > 1; the others are at most one (1, 0) and one (0, 1)
  int own;      ///< index of (1, 0), -1: none
  int left;     ///< index of (0, 1), -1: none
  int4 far[kMaxArcs / 4];  // dt + du, du, index: packed by far_code()
};

/// An arc that comes from further than a step.
__host__ __device__ constexpr int far_code(int dt, int du, int arc) {
  return (dt + du) | du << 8 | arc << 16;
}

struct TableShared {
  float2 states[kSlots][33];  // by step; column 0 is the border, its tau at slot tau - 1
  float2 edge[32];            // boundary(tau) of column 0, by tau modulo 32
};

/// Bytes of shared memory: TableShared, then weights [A][kSlots][32] as they come, then split [16][A][32].
__host__ __device__ constexpr std::int64_t table_shared_bytes(int arcs) {
  return (sizeof(TableShared) + 15) / 16 * 16 + arcs * (kSlots * 32 * 4 + 16 * 32 * 8ll);
}

template <bool kBeta>
struct TableStrip {
  static constexpr int kOut = 6;
  static constexpr int kAhead = 3;

  const TableParams& p;
  TableShared& shared;
  float* weights;  // [A][kSlots][32]
  float2* split;   // [16][A][32]
  int b, frames, labels, strip, lane, column, groups, arcs;
  unsigned long long* border_out;
  const unsigned long long* border_in;

  __device__ TableStrip(const TableParams& params, char* memory, int utterance, int which)
      : p(params),
        shared(*reinterpret_cast<TableShared*>(memory)),
        b(utterance),
        strip(which),
        lane(static_cast<int>(threadIdx.x) % 32) {
    arcs = p.call.plan.num_arcs;
    weights = reinterpret_cast<float*>(memory + (sizeof(TableShared) + 15) / 16 * 16);
    split = reinterpret_cast<float2*>(weights + arcs * kSlots * 32);
    frames = p.call.frames_of(b);
    labels = p.call.labels_of(b);
    column = 32 * strip + lane;
    groups = (frames + 8) / 8 + kOut;
    const std::int64_t length = border_length(p.call.frames + 1);
    border_out = p.border + ((2ll * b + (kBeta ? 1 : 0)) * p.strips + strip) * length + kBorderPad;
    border_in = border_out - length;
  }

  __device__ bool has_next() const { return 32 * (strip + 1) <= labels; }

  /// Whether the arc into (tau, column) comes from a node that can have arcs.
  __device__ bool joins(int tau, int dt, int du) const {
    const bool inside = tau >= dt && column >= du && column <= labels;
    return inside && (kBeta ? tau >= 1 && tau <= frames : tau - dt < frames);
  }

  __device__ void fetch(int fetcher) {
    const CallView& call = p.call;
    const std::int64_t step = kBeta ? -call.rows() : call.rows();
    const auto fetch_group = [&](int g) {
      for (int a = fetcher; a < arcs; a += kFetchers) {
        const int dt = call.plan.arcs[a].dt;
        const int du = call.plan.arcs[a].du;
        const float* plane = p.memory.arcs + a * call.plane;
        std::int64_t at = kBeta ? call.node(b, frames - 8 * g, labels - column)
                                : call.node(b, 8 * g - dt, column - du);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int tau = 8 * g + i;
          copy_word(weights + (a * kSlots + tau % kSlots) * 32 + lane, plane + at,
                    joins(tau, dt, du));
          at += step;
        }
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (int g = 0; g < kAhead; ++g) fetch_group(g);
    __syncthreads();
    for (int g = 0; g < groups; ++g) {
      asm volatile("cp.async.wait_group 2;" ::: "memory");
      for (int a = fetcher; a < arcs; a += kFetchers) {
        const int dt = call.plan.arcs[a].dt;
        const int du = call.plan.arcs[a].du;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int tau = 8 * g + i - lane;
          const float w = joins(tau, dt, du)
                              ? weights[(a * kSlots + (tau & (kSlots - 1))) * 32 + lane]
                              : -INFINITY;
          const Scaled factor = exp_scaled(w);
          split[(((8 * g + i) & 15) * arcs + a) * 32 + lane] = MantissaExponent::pack(factor);
        }
      }
      fetch_group(g + kAhead);
      __syncthreads();
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }

  __device__ void exchange() {
    const CallView& call = p.call;
    const std::int64_t ends = b * static_cast<std::int64_t>(call.frames + 1);
    const double* boundary = (kBeta ? p.memory.final_scores : p.memory.start_scores) + ends;
    const int limit = column <= labels ? frames + 1 : 0;
    const std::int64_t step = kBeta ? -call.rows() : call.rows();
    float2* out = (kBeta ? p.beta : p.alpha) + (ends + (kBeta ? frames : 0)) * call.rows() +
                  (kBeta ? labels - column : column) - 8 * kOut * step;
    for (int s = lane; s < kSlots; s += 32) {
      shared.states[s][0] = MantissaExponent::pack(MantissaExponent::zero());
    }
    __syncthreads();
    for (int g = 0; g < groups; ++g) {
      const int tau = 8 * g + (lane & 7);
      unsigned long long value = 0;
      if (strip > 0) value = peek(border_in + min(tau, frames));
      float2 done[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        done[i] = shared.states[(8 * (g - kOut) + i + lane) & (kSlots - 1)][lane + 1];
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int row = 8 * (g - kOut) + i;
        if (row >= 0 && row < limit) *out = done[i];
        out += step;
      }
      if (strip > 0) {
        if (tau <= frames) {
          while (value == kNotYet) value = peek(border_in + tau);
        }
        if (lane < 8 && tau <= frames) {
          reinterpret_cast<unsigned long long&>(shared.states[(tau - 1) & (kSlots - 1)][0]) = value;
        }
      } else if (lane < 8) {
        const double score = tau <= frames ? boundary[kBeta ? frames - tau : tau] : -INFINITY;
        shared.edge[tau & 31] = MantissaExponent::pack(MantissaExponent::from_log(score));
      }
      __syncthreads();
    }
  }

  /// Sum over the far arcs into step s, and the boundary.
  __device__ __forceinline__ Scaled far_sum(int s, const float2* at) const {
    Scaled sum = MantissaExponent::zero();
    if (strip == 0 && lane == 0) sum = MantissaExponent::unpack(shared.edge[s & 31]);
    for (int k = 0; k < p.num_far; k += 4) {
      const int4 codes = p.far[k / 4];
      const int code[4] = {codes.x, codes.y, codes.z, codes.w};
      Scaled term[4];
      int high = sum.e;
#pragma unroll
      for (int j = 0; j < 4; ++j) {  // padded with -1
        term[j] = MantissaExponent::zero();
        if (code[j] < 0) continue;
        const int du = code[j] >> 8 & 255;
        const float2 from = shared.states[(s - (code[j] & 255)) & (kSlots - 1)][lane + 1 - du];
        const float2 weight = at[(code[j] >> 16) * 32];
        term[j] = {from.x * weight.x, __float_as_int(from.y) + __float_as_int(weight.y)};
        high = max(high, term[j].e);
      }
      float m = sum.m * pow2_nonpositive(sum.e - high);
#pragma unroll
      for (int j = 0; j < 4; ++j) m = fmaf(term[j].m, pow2_nonpositive(term[j].e - high), m);
      sum = {m, high};
    }
    return sum;
  }

  __device__ void recur() {
    for (int s = 0; s < kSlots; ++s) {
      shared.states[s][lane + 1] = MantissaExponent::pack(MantissaExponent::zero());
    }
    Scaled value = MantissaExponent::zero();
    const bool publishes = lane == 31 && has_next();
    __syncthreads();
    for (int round = 0; round < groups; ++round) {
      const int g = round - 1;  // the other warps are a group ahead
      if (g >= 0) {
#pragma unroll 2
        for (int i = 0; i < 8; ++i) {
          const int s = 8 * g + i;
          const float2* at = split + (s & 15) * arcs * 32 + lane;
          Scaled sum = far_sum(s, at);
          Scaled own = MantissaExponent::zero();
          Scaled left = MantissaExponent::zero();
          if (p.own >= 0) {
            const Scaled w = MantissaExponent::unpack(at[p.own * 32]);
            own = {value.m * w.m, value.e + w.e};
          }
          if (p.left >= 0) {
            const Scaled w = MantissaExponent::unpack(at[p.left * 32]);
            const Scaled border =
                MantissaExponent::unpack(shared.states[(s - 1) & (kSlots - 1)][0]);
            float m = __shfl_up_sync(~0u, value.m, 1);
            int e = __shfl_up_sync(~0u, value.e, 1);
            if (lane == 0) {
              m = border.m;
              e = border.e;
            }
            left = {m * w.m, e + w.e};
          }
          const int high = max(max(own.e, left.e), sum.e);
          value.m = fmaf(own.m, pow2_nonpositive(own.e - high),
                         fmaf(left.m, pow2_nonpositive(left.e - high),
                              sum.m * pow2_nonpositive(sum.e - high)));
          value.e = high;
          if ((i & 3) == 0) value = MantissaExponent::normalised(value);
          shared.states[s & (kSlots - 1)][lane + 1] = MantissaExponent::pack(value);
          if (publishes) publish(border_out + s - 31, value.m, value.e);
          __syncwarp();
        }
      }
      __syncthreads();
    }
  }

  __device__ void run() {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (warp == 0) {
      recur();
    } else if (warp <= kFetchers) {
      fetch(warp - 1);
    } else {
      exchange();
    }
  }
};

static __global__ void __launch_bounds__(kTableThreads)
    table_kernel(const __grid_constant__ TableParams p) {
  extern __shared__ float4 table_memory[];
  __shared__ unsigned ticket;
  if (threadIdx.x == 0) ticket = atomicAdd(p.ticket, 1u) + 1u;
  __syncthreads();
  const int sweeps = p.sweeps * p.call.batch;
  const int strip = static_cast<int>(ticket) / sweeps;
  const int which = static_cast<int>(ticket) % sweeps;
  const int b = which / p.sweeps;
  if (32 * strip > p.call.labels_of(b)) return;
  char* memory = reinterpret_cast<char*>(table_memory);
  if (p.sweeps == 2 && which % 2 == 1) {
    TableStrip<true>(p, memory, b, strip).run();
  } else {
    TableStrip<false>(p, memory, b, strip).run();
  }
}

}  // namespace transducer::cuda
