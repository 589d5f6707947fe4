// SPDX-License-Identifier: Apache-2.0
//
// The joint source on the CPU: z(t, u) = W drop(act(E_t + m_u P_u)) + c is made in tiles of kTileRows lattice
// rows by kTileColumns columns, looked at, and forgotten; the [B, T, U+1, K] tensor never exists. Tiles are
// always multiplied full, padded with zeros, and hold rows of one utterance only, so bits do not depend on
// threads or batch mates.
//
//   forward    h = drop(act(E + P)); z = h W^T + c; log-sums and taps of z                    (1 product)
//   backward   over the kept rows, kChunkRows at a time: z again, G = d cost / d z, dh = G W, dW += G^T h
//              (3 products); dE sums over u, dP over t, in row order
#pragma once

#include <span>

#include "cpu/utterance.hpp"
#include "reference/core/workspace.hpp"

namespace transducer::cpu {

inline constexpr std::int64_t kTileRows = 128;
inline constexpr std::int64_t kTileColumns = 1024;
inline constexpr std::int64_t kChunkRows = 1024;
inline constexpr std::int64_t kSumColumns = 64;  ///< columns of H summed over rows by one task

/// Books the joint source's regions; elements are those of the call's arithmetic type.
void plan_joint(const LossShape& shape, int threads, WorkspacePlan& plan);

/// Widens W and c into their regions; zeroes the shared gradient sums. Once a call.
void begin_joint(const Call& call, const WorkspacePlan& plan, const Workspace& workspace);

void joint_scores(const Call& call, std::span<Utterance> utterances, const WorkspacePlan& plan,
                  const Workspace& workspace);

void joint_gradient(const Call& call, std::span<Utterance> utterances, const WorkspacePlan& plan,
                    const Workspace& workspace);

/// Rounds dW and dc into the result.
void end_joint(const Call& call, const WorkspacePlan& plan, const Workspace& workspace,
               bool poisoned);

}  // namespace transducer::cpu
