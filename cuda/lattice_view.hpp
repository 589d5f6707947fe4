// SPDX-License-Identifier: Apache-2.0
//
// LatticeView: what the scores and lattice stages leave for the gradient stage, on the device. Real is float,
// double for float64 inputs; planes as in call_view.hpp.
#pragma once

#include <cstdint>

#include "cuda/row_set.cuh"

namespace transducer::cuda {

template <class Real>
struct LatticeView {
  Real* node_scores = nullptr;    // [S, plane]; taps are dead once the lattice has run
  Real* arcs = nullptr;           // [A, plane]: posteriors; NaN for poisoned utterances
  std::int32_t* state = nullptr;  // [B] UtteranceState
  const double* scale = nullptr;  // [B] reduction times incoming gradient
  RowSet reachable;               // for the forward of the joint source
  RowSet kept;                    // for the backward
};

}  // namespace transducer::cuda
