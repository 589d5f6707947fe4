// SPDX-License-Identifier: Apache-2.0
//
// A wave: the utterances whose lattices are in memory at a time.
#pragma once

#include <cstdint>

#include "reference/core/request.hpp"

namespace transducer::cpu {

/// Utterances a wave holds; depends on the shape alone, so bits do not depend on threads.
std::int64_t wave_size(const LossShape& shape);

}  // namespace transducer::cpu
