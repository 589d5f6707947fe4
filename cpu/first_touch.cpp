// SPDX-License-Identifier: Apache-2.0
#include "cpu/first_touch.hpp"

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace transducer::cpu {

void provide_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#if defined(MADV_POPULATE_WRITE)
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::size_t before = (page - address % page) % page;  // to the first whole page
  const std::size_t end = (address + bytes) / page * page - address;
  // Refused by systems before Linux 5.14 and for memory of unusual kinds: then the stores fault, as ever.
  if (before < end && end <= bytes) {  // end wraps around where no page ends inside
    static_cast<void>(
        madvise(static_cast<std::byte*>(data) + before, end - before, MADV_POPULATE_WRITE));
  }
#endif
}

}  // namespace transducer::cpu
