// SPDX-License-Identifier: Apache-2.0
//
// The workspace of a call, taken apart: one pointer for each region that plan.cpp books. Real is float, or
// double for float64 inputs. States (alpha, beta) are 8 bytes in either: a mantissa and an exponent, or a
// double. alpha lies over the tap planes, which are dead once the arc weights are made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cuda/lattice_view.hpp"
#include "reference/core/request.hpp"
#include "reference/core/workspace.hpp"

namespace transducer::cuda {

inline constexpr int kBins = 128;            ///< powers of two of an occupancy
inline constexpr int kFramesPerScan = 1024;  ///< frames that one block counts rows of
inline constexpr int kBorderPad = 40;        ///< border words before tau = 0 and after tau = T

/// Words that a strip of a lattice of `frames` rows hands to the next: lattice_strips.cuh.
TX_HD constexpr std::int64_t border_length(std::int64_t frames) {
  return (frames + 7) / 8 * 8 + 2 * kBorderPad;
}

template <class Real>
struct Memory {
  // Saved from forward to backward.
  Real* node_scores = nullptr;          // [S, plane]
  Real* arcs = nullptr;                 // [A, plane]
  std::uint32_t* label_arcs = nullptr;  // [B, U+1] arcs_for_label() at each u
  double* start_scores = nullptr;       // [B, T+1]; the posteriors take their place
  double* final_scores = nullptr;       // [B, T+1]; likewise
  double* costs = nullptr;              // [B]
  std::int32_t* state = nullptr;        // [B] UtteranceState
  RowSet kept;

  // Scratch.
  void* alpha = nullptr;                    // [B, T+1, U+1] states
  void* beta = nullptr;                     // [B, T+1, U+1] states
  unsigned long long* border = nullptr;     // ticket, then [B, 2, strips, border_length]
  void* totals = nullptr;                   // [B] states
  std::uint32_t* saw_poison = nullptr;      // [B]
  std::uint32_t* histogram = nullptr;       // [B, kBins] nodes by their occupancy's power of two
  unsigned long long* path_mass = nullptr;  // [B] summed occupancy in units of 2^-24
  double* threshold = nullptr;              // [B]
  double* scale = nullptr;                  // [B]
  std::int64_t* block_rows = nullptr;       // [ceil(B T / kFramesPerScan)]
  RowSet reachable;
  std::span<std::byte> joint;
};

/// Elements of a plane: nodes of the grid with T + 1 frames, so that states fit over two float planes.
std::int64_t plane_elements(const LossShape& shape);

template <class Real>
Memory<Real> take_memory(const LossShape& shape, const WorkspacePlan& plan,
                         const Workspace& workspace);

}  // namespace transducer::cuda
