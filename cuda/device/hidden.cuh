// SPDX-License-Identifier: Apache-2.0
//
// Units of the joint network, h = drop(act(E_t + m_u P_u)), and what comes back through them: a few
// neighbouring units of one node at a time, from inputs of any type and strides.
//
// Planes: a float32 number as a sum of bfloat16 numbers, 8 bits each, all but the last rounded towards zero.
#pragma once

#include <cmath>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "reference/core/philox.hpp"
#include "reference/core/request.hpp"

namespace transducer::cuda {

/// A caller's array whose last axis is H.
struct UnitArray {
  TensorRef tensor;
  bool aligned = false;  ///< 8 units from a multiple of 8 can be read in 16-byte pieces
};

struct JointView {
  UnitArray encoder;    // [B, T, H]
  UnitArray predictor;  // [B, U+1, H]
  TensorRef mask;       // [B, U+1], optional
  TensorRef ids;        // [B], optional
  int hidden = 0;       // H
  Activation activation = Activation::relu;
  std::uint32_t drop_below = 0;  ///< lanes below it are dropped; 0: no dropout
  double keep_scale = 1.0;
  std::uint64_t seed = 0;

  __device__ bool has_mask() const { return mask.rank >= 0; }
  __device__ bool has_ids() const { return ids.rank >= 0; }
};

/// Where a lattice row lies.
struct NodeAt {
  int b = 0;
  int t = 0;
  int u = 0;
};

template <class Real>
__device__ __forceinline__ Real load_unit(const TensorRef& x, std::int64_t offset) {
  switch (x.dtype) {
    case DType::float64:
      return static_cast<Real>(static_cast<const double*>(x.data)[offset]);
    case DType::float32:
      return static_cast<Real>(static_cast<const float*>(x.data)[offset]);
    case DType::bfloat16:
      return static_cast<Real>(__bfloat162float(static_cast<const __nv_bfloat16*>(x.data)[offset]));
    case DType::float16:
      return static_cast<Real>(__half2float(static_cast<const __half*>(x.data)[offset]));
    case DType::boolean:
      return static_cast<const std::uint8_t*>(x.data)[offset] != 0 ? Real(1) : Real(0);
    default:
      return Real(0);
  }
}

/// Two neighbouring 16-bit elements.
template <class Element>
__device__ __forceinline__ void widen_pair(std::uint32_t pair, float* low, float* high) {
  if constexpr (std::is_same_v<Element, __half>) {
    const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    *low = both.x;
    *high = both.y;
  } else {
    *low = __uint_as_float(pair << 16);
    *high = __uint_as_float(pair & 0xFFFF0000u);
  }
}

/// Where one piece of a row is read: units first .. of row (i, j).
struct Piece {
  int i, j, first;
};

template <class Stored, int R, int N, class Real>
__device__ __forceinline__ void load_single(const TensorRef& x, const Piece (&at)[R], int hidden,
                                            Real (&units)[R][N]) {
  const auto* from = static_cast<const Stored*>(x.data);
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const std::int64_t row = at[r].i * x.strides[0] + at[r].j * x.strides[1];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const bool inside = at[r].first + n < hidden;
      const std::int64_t unit = inside ? at[r].first + n : 0;
      const Stored value = hidden > 0 ? from[row + unit * x.strides[2]] : Stored();
      units[r][n] = inside ? static_cast<Real>(value) : Real(0);
    }
  }
}

/// N units of each of R rows, zeros from H on; all loads are under way before the first is used, and types
/// are told apart once for all of them.
template <int R, int N, class Real>
__device__ __forceinline__ void load_pieces(const UnitArray& array, const Piece (&at)[R],
                                            int hidden, Real (&units)[R][N]) {
  const TensorRef& x = array.tensor;
  bool whole = array.aligned;
#pragma unroll
  for (int r = 0; r < R; ++r) whole = whole && at[r].first + N <= hidden;
  if (whole && (x.dtype == DType::bfloat16 || x.dtype == DType::float16)) {
    std::uint32_t pairs[R][N / 2];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const auto* from = static_cast<const std::uint16_t*>(x.data) + at[r].i * x.strides[0] +
                         at[r].j * x.strides[1] + at[r].first;
#pragma unroll
      for (int p = 0; p < N / 4; ++p) {
        const uint2 raw = __ldg(reinterpret_cast<const uint2*>(from) + p);
        pairs[r][2 * p] = raw.x;
        pairs[r][2 * p + 1] = raw.y;
      }
    }
    const bool brain = x.dtype == DType::bfloat16;
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int p = 0; p < N / 2; ++p) {
        float low, high;
        if (brain) {
          widen_pair<__nv_bfloat16>(pairs[r][p], &low, &high);
        } else {
          widen_pair<__half>(pairs[r][p], &low, &high);
        }
        units[r][2 * p] = static_cast<Real>(low);
        units[r][2 * p + 1] = static_cast<Real>(high);
      }
    }
    return;
  }
  if (whole && x.dtype == DType::float32) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float* from = static_cast<const float*>(x.data) + at[r].i * x.strides[0] +
                          at[r].j * x.strides[1] + at[r].first;
#pragma unroll
      for (int p = 0; p < N / 4; ++p) {
        const float4 raw = __ldg(reinterpret_cast<const float4*>(from) + p);
        units[r][4 * p] = static_cast<Real>(raw.x);
        units[r][4 * p + 1] = static_cast<Real>(raw.y);
        units[r][4 * p + 2] = static_cast<Real>(raw.z);
        units[r][4 * p + 3] = static_cast<Real>(raw.w);
      }
    }
    return;
  }
  switch (x.dtype) {
    case DType::float64:
      return load_single<double>(x, at, hidden, units);
    case DType::float32:
      return load_single<float>(x, at, hidden, units);
    case DType::bfloat16:
      return load_single<__nv_bfloat16>(x, at, hidden, units);
    default:
      return load_single<__half>(x, at, hidden, units);
  }
}

template <class Real>
__device__ __forceinline__ Real logistic(Real x) {
  const Real e = exp(-fabs(x));
  return (x < Real(0) ? e : Real(1)) / (Real(1) + e);
}

template <class Real>
__device__ __forceinline__ Real gaussian_cdf(Real x) {
  return Real(0.5) * erfc(x * Real(-0.70710678118654752440));
}

/// Replaces each x by f(x).
template <int N, class Real, class Function>
__device__ __forceinline__ void map_units(Real (&x)[N], Function f) {
#pragma unroll
  for (int n = 0; n < N; ++n) x[n] = f(x[n]);
}

/// Activations of N units: one branch for all of them.
template <int N, class Real>
__device__ __forceinline__ void activate(Activation activation, Real (&x)[N]) {
  if (activation == Activation::relu) {
    map_units(x, [](Real v) { return v < Real(0) ? Real(0) : v; });
    return;
  }
  switch (activation) {
    case Activation::leaky_relu:
      map_units(x, [](Real v) { return v < Real(0) ? Real(0.01) * v : v; });
      break;
    case Activation::tanh:
      map_units(x, [](Real v) { return tanh(v); });
      break;
    case Activation::sigmoid:
      map_units(x, [](Real v) { return logistic(v); });
      break;
    case Activation::gelu:
      map_units(x, [](Real v) { return v * gaussian_cdf(v); });
      break;
    case Activation::silu:
      map_units(x, [](Real v) { return v * logistic(v); });
      break;
    default:
      break;
  }
}

/// x becomes act'(x).
template <int N, class Real>
__device__ __forceinline__ void activation_slopes(Activation activation, Real (&x)[N]) {
  if (activation == Activation::relu) {
    map_units(x, [](Real v) { return v > Real(0) ? Real(1) : Real(0); });
    return;
  }
  switch (activation) {
    case Activation::leaky_relu:
      map_units(x, [](Real v) { return v > Real(0) ? Real(1) : Real(0.01); });
      break;
    case Activation::tanh:
      map_units(x, [](Real v) {
        const Real y = tanh(v);
        return Real(1) - y * y;
      });
      break;
    case Activation::sigmoid:
      map_units(x, [](Real v) {
        const Real y = logistic(v);
        return y * (Real(1) - y);
      });
      break;
    case Activation::gelu:
      map_units(x, [](Real v) {
        return gaussian_cdf(v) + v * Real(0.39894228040143267794) * exp(Real(-0.5) * v * v);
      });
      break;
    case Activation::silu:
      map_units(x, [](Real v) {
        const Real y = logistic(v);
        return y + v * y * (Real(1) - y);
      });
      break;
    default:
      map_units(x, [](Real) { return Real(1); });
      break;
  }
}

template <class Real>
__device__ __forceinline__ Real predictor_factor(const JointView& joint, int b, int u) {
  if (!joint.has_mask()) return Real(1);
  return load_unit<Real>(joint.mask, b * joint.mask.strides[0] + u * joint.mask.strides[1]);
}

__device__ __forceinline__ std::int64_t utterance_id(const JointView& joint, int b) {
  if (!joint.has_ids()) return b;
  const std::int64_t offset = b * joint.ids.strides[0];
  return joint.ids.dtype == DType::int64 ? static_cast<const std::int64_t*>(joint.ids.data)[offset]
                                         : static_cast<const std::int32_t*>(joint.ids.data)[offset];
}

/// Multiplies N units from `first` on by the dropout mask of a node.
template <int N, class Real>
__device__ __forceinline__ void drop_units(const JointView& joint, const NodeAt& at, int first,
                                           Real (&units)[N]) {
  if (joint.drop_below == 0) return;
  const DropoutLanes random =
      dropout_lanes(joint.seed, utterance_id(joint, at.b), at.t, at.u, first / 8);
  const Real scale = static_cast<Real>(joint.keep_scale);
  const bool upper = first % 8 != 0;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const std::uint32_t lane = N == 8 || !upper ? random.lanes[n] : random.lanes[(n + 4) % 8];
    units[n] = lane >= joint.drop_below ? units[n] * scale : Real(0) * units[n];
  }
}

/// h of N units from sums x = E + m P, zeros from H on.
template <int N, class Real>
__device__ __forceinline__ void make_units(const JointView& joint, const NodeAt& at, int first,
                                           Real (&x)[N]) {
  activate(joint.activation, x);
  if (first + N > joint.hidden) {
#pragma unroll
    for (int n = 0; n < N; ++n) x[n] = first + n < joint.hidden ? x[n] : Real(0);
  }
  if (joint.drop_below == 0) return;
  const DropoutLanes random =
      dropout_lanes(joint.seed, utterance_id(joint, at.b), at.t, at.u, first / 8);
  const Real scale = static_cast<Real>(joint.keep_scale);
#pragma unroll
  for (int n = 0; n < N; ++n) x[n] = random.lanes[n] >= joint.drop_below ? x[n] * scale : Real(0);
}

/// One number as planes, `plane` elements apart.
template <int kPlanes>
__device__ __forceinline__ void split_planes(float x, __nv_bfloat16 (&planes)[kPlanes]) {
#pragma unroll
  for (int p = 0; p + 1 < kPlanes; ++p) {
    planes[p] = __float2bfloat16_rz(x);
    const float rest = x - __bfloat162float(planes[p]);
    x = isfinite(x) ? rest : 0.0f;
  }
  planes[kPlanes - 1] = __float2bfloat16_rn(x);
}

/// N numbers to `to`, as elements or as planes `plane` elements apart; N elements make 4, 8 or 16 bytes.
template <int kPlanes, int N, class Element, class Real>
__device__ __forceinline__ void store_planes(const Real (&x)[N], Element* to, std::int64_t plane) {
  if constexpr (std::is_same_v<Element, double>) {
#pragma unroll
    for (int n = 0; n < N; ++n) to[n] = x[n];
  } else {
    union {
      Element element[N];
      std::uint32_t word[N / 2];
    } packed[kPlanes];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if constexpr (std::is_same_v<Element, __half>) {
        packed[0].element[n] = __float2half_rn(x[n]);
      } else {
        __nv_bfloat16 planes[kPlanes];
        split_planes<kPlanes>(x[n], planes);
#pragma unroll
        for (int p = 0; p < kPlanes; ++p) packed[p].element[n] = planes[p];
      }
    }
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) {
      Element* at = to + p * plane;
      if constexpr (N == 8) {
        *reinterpret_cast<uint4*>(at) =
            make_uint4(packed[p].word[0], packed[p].word[1], packed[p].word[2], packed[p].word[3]);
      } else if constexpr (N == 4) {
        *reinterpret_cast<uint2*>(at) = make_uint2(packed[p].word[0], packed[p].word[1]);
      } else {
        *reinterpret_cast<std::uint32_t*>(at) = packed[p].word[0];
      }
    }
  }
}

}  // namespace transducer::cuda
