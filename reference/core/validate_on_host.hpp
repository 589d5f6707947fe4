// SPDX-License-Identifier: Apache-2.0
//
// What the layers that run on the host check before they read anything.
#pragma once

#include <string_view>

#include "reference/core/request.hpp"
#include "reference/core/validate.hpp"

namespace transducer {

/// validate(), always with labels and lengths: an unchecked one would be a stray memory access. Throws
/// InvalidArgument for an array that is not in host memory; `layer` names who says so.
ValidRequest validate_on_host(const LossRequest& request, const LossResult& result, Options options,
                              std::string_view layer);

}  // namespace transducer
