// SPDX-License-Identifier: Apache-2.0
//
// Asking the caller whether to go on. A layer cannot see Python's signals; it polls the callback.
#pragma once

#include <string_view>

#include "reference/core/error.hpp"
#include "reference/core/request.hpp"

namespace transducer {

/// Throws Cancelled if the caller's callback says so.
inline void poll_cancelled(const Options& options, std::string_view caller) {
  if (options.cancelled != nullptr && options.cancelled(options.cancelled_context)) {
    throw Cancelled(concat(caller, ": cancelled by the caller; outputs are incomplete"));
  }
}

}  // namespace transducer
