// SPDX-License-Identifier: Apache-2.0
//
// Alpha and beta of tables with the two moves (1, 0) and (0, 1), RNN-T above all; both sweeps in one launch.
//
// Purpose: the latency of T + U steps, each as short as it gets. Approach: a strip is 32 neighbouring u, a lane
// each, lane i being i frames behind lane 0; so a warp walks diagonals and a value moves to the next u by one
// shuffle. A block of three warps takes a strip: the recursion; fetching weights and splitting them into mantissa
// and exponent; the border from the strip before and finished rows out. They meet once per 8 steps. Exponents
// depend on exponents alone, so they run a step ahead of mantissas: two short chains in place of a long one.
//
// Coordinates: tau counts frames from where the sweep starts (alpha: t = tau; beta: t = T-1-tau), c counts u from
// there (alpha: u = c; beta: u = U-c). Strips hand their last column on through device memory, in 8-byte words
// that validate themselves: the buffer starts as all ones. Blocks take tickets in the order of strips, so a block
// waits only for an older one and nothing depends on which blocks are resident together.
//
// Constraint: 41 KiB of shared memory, B x 2 x ceil((U+1)/32) blocks. Row T and the total: cap_kernel.
#pragma once

#include "cuda/kernels/lattice.cuh"

namespace transducer::cuda {

inline constexpr int kSlots = 64;                     ///< rows of the rings
inline constexpr unsigned long long kNotYet = ~0ull;  // no state has this pattern

struct StripsParams {
  CallView call;
  const float* blank;          // [plane] weights of (1, 0)
  const float* label;          // [plane] weights of (0, 1)
  float2* alpha;               // [B, T+1, U+1]
  float2* beta;                // [B, T+1, U+1]
  unsigned long long* border;  // [B, 2, strips, border_length], all ones, like the ticket
  unsigned* ticket;            // -1 at the start
  int strips;                  // ceil((U+1) / 32)
  int sweeps;                  // 2, or 1 for alpha alone
};

struct StripsShared {
  float2 weights[kSlots][32];  // rows of weights as they come
  float2 states[kSlots][32];   // steps of states as they leave
  float4 split[16][32];        // p, p, k, k of two groups of 8 steps
  float4 first_split[32];      // of step 0
  float2 arriving[32];         // border column, by tau modulo 32
};

enum class Sweep { alpha, beta };

__device__ __forceinline__ void copy_word(void* shared, const void* global, bool valid) {
  const int bytes = valid ? 4 : 0;  // 0: filled with zeros
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ unsigned long long peek(const unsigned long long* word) {
  unsigned long long value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ void publish(unsigned long long* word, float m, int e) {
  const unsigned long long value = static_cast<unsigned long long>(__float_as_uint(m)) |
                                   static_cast<unsigned long long>(static_cast<unsigned>(e)) << 32;
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

/// One strip of one sweep: what the three warps share.
template <Sweep kSweep>
struct Strip {
  static constexpr bool kBeta = kSweep == Sweep::beta;
  static constexpr int kOut = 6;    ///< groups that a row waits before it leaves
  static constexpr int kAhead = 3;  ///< groups that weights are fetched ahead

  const StripsParams& p;
  StripsShared& shared;
  int frames, labels, strip, lane, column, groups, limit;
  std::int64_t step, node, state;
  unsigned long long* border_out;
  const unsigned long long* border_in;

  __device__ Strip(const StripsParams& params, StripsShared& memory, int b, int which)
      : p(params), shared(memory), strip(which), lane(static_cast<int>(threadIdx.x) % 32) {
    const CallView& call = p.call;
    frames = call.frames_of(b);
    labels = call.labels_of(b);
    column = 32 * strip + lane;
    groups = (frames + 7) / 8 + kOut;
    limit = column <= labels ? frames : 0;
    step = kBeta ? -call.rows() : call.rows();
    const int t = kBeta ? frames - 1 : 0;
    const int u = kBeta ? labels - column : column;
    node = call.node(b, t, u);
    state = (b * static_cast<std::int64_t>(call.frames + 1) + t) * call.rows() + u;
    const std::int64_t length = border_length(call.frames);
    border_out = p.border + ((2ll * b + (kBeta ? 1 : 0)) * p.strips + strip) * length + kBorderPad;
    border_in = border_out - length;
  }

  __device__ bool has_next() const { return 32 * (strip + 1) <= labels; }

  __device__ float4 split_weights(float2 w) const {
    const Scaled blank = exp_scaled(w.x);
    const Scaled label = exp_scaled(w.y);
    return make_float4(blank.m, label.m, __int_as_float(blank.e), __int_as_float(label.e));
  }

  /// Second warp: weights in, a lane its own column, then split for the steps that need them.
  __device__ void fetch() {
    std::int64_t at = node;
    const auto fetch_row = [&](int row) {
      float2* slot = &shared.weights[row % kSlots][lane];
      copy_word(&slot->x, p.blank + at, row < limit);
      copy_word(&slot->y, p.label + at, row < limit);
      at += step;
    };
    for (int s = 0; s < kSlots; ++s) shared.weights[s][lane] = make_float2(0.0f, 0.0f);
    for (int row = 0; row < 8 * kAhead; ++row) {
      fetch_row(row);
      if (row % 8 == 7) asm volatile("cp.async.commit_group;" ::: "memory");
    }
    __syncthreads();
    for (int g = 0; g < groups; ++g) {
      asm volatile("cp.async.wait_group 1;" ::: "memory");
      float2 w[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        w[i] = shared.weights[(8 * g + i + (kBeta ? 1 : 0) - lane) & (kSlots - 1)][lane];
      }
      if (g == 0) {
        shared.first_split[lane] = split_weights(shared.weights[-lane & (kSlots - 1)][lane]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        shared.split[(8 * g & 15) + i][lane] = split_weights(w[i]);
        fetch_row(8 * (g + kAhead) + i);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
      __syncthreads();
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }

  /// Third warp: border values in as soon as they are there, rows of states out.
  __device__ void exchange() {
    float2* out = (kBeta ? p.beta : p.alpha) + state - 8 * kOut * step;
    auto* arriving = reinterpret_cast<unsigned long long*>(shared.arriving);
    __syncthreads();
    for (int g = 0; g < groups; ++g) {
      const int tau = 8 * g + 1 + (lane & 7);
      unsigned long long value = 0;
      if (strip > 0) value = peek(border_in + min(tau, frames));
      float2 done[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        done[i] = shared.states[(8 * (g - kOut) + i + lane) & (kSlots - 1)][lane];
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int row = 8 * (g - kOut) + i;
        if (row >= 0 && row < limit) *out = done[i];
        out += step;
      }
      if (strip > 0) {
        if (tau < frames) {
          while (value == kNotYet) value = peek(border_in + tau);
        }
        __syncwarp();
        if (lane < 8) arriving[(tau - 1) & 31] = value;
        if (g == 0 && lane == 0) {
          do value = peek(border_in);
          while (value == kNotYet);
          arriving[31] = value;
        }
      }
      __syncthreads();
    }
  }

  /// First warp: the recursion.
  __device__ void recur() {
    shared.arriving[lane] = MantissaExponent::pack(MantissaExponent::zero());
    const bool starts = strip == 0 && lane == 0;
    const Scaled before = starts ? Scaled{1.0f, 0} : MantissaExponent::zero();
    float m = before.m;
    float keep = before.m;
    float send = 0.0f;
    float scale_own = 1.0f;
    float scale_left = 1.0f;
    float arrived = 0.0f;
    int e = 0;
    const bool last_lane = lane == 31 && has_next();
    __syncthreads();
    for (int round = 0; round < groups; ++round) {
      const int g = round - 1;  // the other warps are a group ahead
      if (g >= 0) {
        float4 weights[8];
        float2 arrive[8];  // arrive[i] belongs to tau = 8 g + i + 1
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          weights[i] = shared.split[(8 * g & 15) + i][lane];
          arrive[i] = shared.arriving[(8 * g + i) & 31];
        }
        if (g == 0) {
          const float2 border = shared.arriving[31];
          const float4 zeroth = shared.first_split[lane];
          int own = before.e;
          int left = lane == 0 ? __float_as_int(border.y) : kZeroExponent;
          arrived = border.x;
          if (kBeta) {
            own += __float_as_int(zeroth.z);
            left += __float_as_int(zeroth.w);
          }
          e = max(own, left);
          scale_own = pow2_nonpositive(own - e) * (kBeta ? zeroth.x : 1.0f);
          scale_left = pow2_nonpositive(left - e) * (kBeta ? zeroth.y : 1.0f);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float left = __shfl_up_sync(~0u, kBeta ? m : send, 1);
          if (lane == 0) left = arrived;
          m = fmaf(left, scale_left, (kBeta ? m : keep) * scale_own);
          if (i == 0 && (g & 3) == 0) {
            // A step multiplies m by at most 2.83 and at least 0.7: every 32 steps is often enough.
            const Scaled normal = MantissaExponent::normalised({m, e});
            m = normal.m;
            e = normal.e;
          }
          shared.states[(8 * g + i) & (kSlots - 1)][lane] = make_float2(m, __int_as_float(e));
          const int own_e = e + __float_as_int(weights[i].z);
          const int label_e = __float_as_int(weights[i].w);
          int left_e = kBeta ? e : e + label_e;
          if (!kBeta) {
            keep = m * weights[i].x;
            send = m * weights[i].y;
          }
          if (last_lane) publish(border_out + 8 * g + i - 31, kBeta ? m : send, left_e);
          left_e = __shfl_up_sync(~0u, left_e, 1);
          if (lane == 0) left_e = __float_as_int(arrive[i].y);
          if (kBeta) left_e += label_e;
          e = max(own_e, left_e);
          scale_own = pow2_nonpositive(own_e - e);
          scale_left = pow2_nonpositive(left_e - e);
          if (kBeta) {
            scale_own *= weights[i].x;
            scale_left *= weights[i].y;
          }
          arrived = arrive[i].x;
        }
      }
      __syncthreads();
    }
  }

  __device__ void run() {
    switch (threadIdx.x / 32) {
      case 0:
        return recur();
      case 1:
        return fetch();
      default:
        return exchange();
    }
  }
};

static __global__ void __launch_bounds__(96) strips_kernel(const __grid_constant__ StripsParams p) {
  extern __shared__ float4 strips_memory[];
  __shared__ unsigned ticket;
  if (threadIdx.x == 0) ticket = atomicAdd(p.ticket, 1u) + 1u;
  __syncthreads();
  const int sweeps = p.sweeps * p.call.batch;
  const int strip = static_cast<int>(ticket) / sweeps;
  const int which = static_cast<int>(ticket) % sweeps;
  const int b = which / p.sweeps;
  if (32 * strip > p.call.labels_of(b) || p.call.frames_of(b) == 0) return;
  StripsShared& shared = *reinterpret_cast<StripsShared*>(strips_memory);
  if (p.sweeps == 2 && which % 2 == 1) {
    Strip<Sweep::beta>(p, shared, b, strip).run();
  } else {
    Strip<Sweep::alpha>(p, shared, b, strip).run();
  }
}

/// Row t = T of alpha and beta, which no strip reaches: a block an utterance.
static __global__ void cap_kernel(const __grid_constant__ StripsParams p) {
  const CallView& call = p.call;
  const int b = static_cast<int>(blockIdx.x);
  const int frames = call.frames_of(b);
  const int labels = call.labels_of(b);
  const std::int64_t row = (b * static_cast<std::int64_t>(call.frames + 1) + frames) * call.rows();
  for (int u = static_cast<int>(threadIdx.x); u <= labels; u += static_cast<int>(blockDim.x)) {
    Scaled end = u == 0 ? Scaled{1.0f, 0} : MantissaExponent::zero();
    if (frames > 0) {
      const Scaled before = MantissaExponent::unpack(p.alpha[row - call.rows() + u]);
      const float weight = p.blank[call.node(b, frames - 1, u)];
      end = MantissaExponent::normalised(MantissaExponent::times(before, weight));
    }
    p.alpha[row + u] = MantissaExponent::pack(end);
    if (p.sweeps == 2) {
      p.beta[row + u] =
          MantissaExponent::pack(u == labels ? Scaled{1.0f, 0} : MantissaExponent::zero());
    }
  }
}

}  // namespace transducer::cuda
