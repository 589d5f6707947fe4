// SPDX-License-Identifier: Apache-2.0
//
// One utterance of a batch as a request of its own: views, no copies.
#pragma once

#include "reference/core/request.hpp"

namespace transducer::distributed {

/// Row `b` of every input of the batch; W and c whole.
LossRequest slice_request(const LossRequest& request, std::int64_t b);

/// Row `b` of every output of the batch; no total, and the gradients of W and c as they are.
LossResult slice_result(const LossResult& result, std::int64_t b);

}  // namespace transducer::distributed
