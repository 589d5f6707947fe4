// SPDX-License-Identifier: Apache-2.0
//
// Memory that was never touched. The system hands out a page when it is first written, filled with zeros that
// are then in the caches; stores that go past the caches must first drive those zeros out, and a pass over
// fresh memory takes twice as long as over memory that has its pages. So pages are asked for beforehand.
#pragma once

#include <cstddef>

namespace transducer::cpu {

/// Has the system provide the pages that lie wholly in [data, data + bytes), all of which the caller is about
/// to overwrite. Contents stay; where the system cannot do it, nothing happens.
void provide_pages(void* data, std::size_t bytes);

}  // namespace transducer::cpu
