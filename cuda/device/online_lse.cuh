// SPDX-License-Identifier: Apache-2.0
//
// Log-sum-exp of a stream in one pass: (max, sum of e^(x - max)), whole runs at a time, merged over a warp.
// NaN and +inf end up as NaN, as the poison rule wants. The device twin of OnlineLogSumExp in
// reference/core/log_math.hpp.
#pragma once

#include <cmath>

#include "cuda/device/number.cuh"

namespace transducer::cuda {

__device__ __forceinline__ float exp_of(float x) {
  return exp2_approximate(x * 1.44269504088896340736f);
}
__device__ __forceinline__ double exp_of(double x) { return exp(x); }

template <class Real>
struct OnlineLse {
  Real max = -INFINITY;
  Real sum = 0;

  template <int N>
  __device__ __forceinline__ void observe(const Real (&x)[N]) {
    Real high = max;
#pragma unroll
    for (int i = 0; i < N; ++i) high = fmax(high, x[i]);  // ignores NaN, which the sum keeps
    const Real base = high == -INFINITY ? Real(0) : high;
    Real added = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) added += exp_of(x[i] - base);
    sum = sum * exp_of(max - base) + added;
    max = high;
  }
  __device__ __forceinline__ void observe(Real x) {
    const Real one[1] = {x};
    observe(one);
  }
  __device__ __forceinline__ void merge(Real other_max, Real other_sum) {
    const Real high = fmax(max, other_max);
    const Real base = high == -INFINITY ? Real(0) : high;
    sum = sum * exp_of(max - base) + other_sum * exp_of(other_max - base);
    max = high;
  }
  /// The sum over groups of kLanes lanes, in each of them; `lanes` call.
  template <int kLanes>
  __device__ __forceinline__ void merge_lanes(unsigned lanes) {
#pragma unroll
    for (int mask = kLanes / 2; mask > 0; mask /= 2) {
      const Real other_max = __shfl_xor_sync(lanes, max, mask);
      merge(other_max, __shfl_xor_sync(lanes, sum, mask));
    }
  }
  __device__ __forceinline__ Real log_z() const { return max + log(sum); }
};

}  // namespace transducer::cuda
