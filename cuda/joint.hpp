// SPDX-License-Identifier: Apache-2.0
//
// The joint source on a device, z(t, u) = W drop(act(E_t + m_u P_u)) + c: its scores and its gradient, host
// side. Neither allocates, waits or looks at lengths; both take one region of scratch and use as much of it as
// helps, so that less scratch means more and smaller pieces of the same sums.
//
// Products run in the type of E, P and W where they share a 16-bit type, with float32 accumulators; else in
// float32, as three bfloat16 planes with Precision::highest (exact to 2^-24) and two with high (2^-16); in
// double for float64.
#pragma once

#include <cstddef>
#include <span>

#include "cuda/call_view.hpp"
#include "cuda/lattice_view.hpp"
#include "cuda/loss.hpp"

namespace transducer::cuda {

/// Bytes of scratch that the joint source's two stages share, at most `available` where its smallest pieces
/// fit. Where they do not: throws InvalidArgument if the limit is the caller's (`strict`), else takes more.
std::int64_t joint_scratch_bytes(const LossShape& shape, std::int64_t available, bool strict);

/// node_scores of every reachable row.
template <class Real>
void joint_scores(const CallView& call, const JointSource& source, const LatticeView<Real>& lattice,
                  std::span<std::byte> scratch, Stream stream);

/// Gradients of E, P, W and c, those that `result` asks for, from the posteriors of the kept rows.
template <class Real>
void joint_gradient(const CallView& call, const JointSource& source,
                    const LatticeView<Real>& lattice, const LossResult& result,
                    std::span<std::byte> scratch, Stream stream);

}  // namespace transducer::cuda
