// SPDX-License-Identifier: Apache-2.0
//
// What the extension module _cuda hands to _core: the entries of the CUDA layer, in a capsule named "backend".
// The layer itself allocates nothing; the module takes scratch from a memory pool of its own, in stream order,
// so that a call can be captured in a graph and waits for nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "reference/core/request.hpp"
#include "reference/core/workspace.hpp"

namespace transducer::python {

enum class Pass : std::uint8_t { both, forward, backward, scores_backward };

/// What a pass needs besides the request.
struct PassData {
  std::span<std::byte> saved;  ///< what forward fills and backward reads
  TensorRef weights_gradient;  // [B, T, U+1, A], of scores_backward
  std::uint64_t stream = 0;    ///< address of the stream of a device call
};

struct CudaBackend {
  WorkspacePlan (*plan)(const LossShape& shape, const Options& options);
  void (*run)(Pass pass, const LossRequest& request, const LossResult& result,
              const Options& options, const PassData& data);
};

}  // namespace transducer::python
