// SPDX-License-Identifier: Apache-2.0
//
// Steps that succeed on all ranks or fail on all: a rank whose part throws still takes part in the exchange,
// so that nobody waits for it.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "distributed/communicator.hpp"

namespace transducer::distributed {

/// Runs `work` and gathers what it returns. If it threw on any rank, every rank throws: the message of
/// the lowest such rank, after its number; InvalidArgument if it was that there.
Gathered gather_or_throw(std::string_view caller, Communicator& communicator,
                         const std::function<std::vector<std::byte>()>& work);

}  // namespace transducer::distributed
