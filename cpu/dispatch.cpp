// SPDX-License-Identifier: Apache-2.0
//
// Which copy of the kernels runs: the widest the processor has, or the one that the environment names.
#include <cstdlib>
#include <string_view>

#include "cpu/kernels.hpp"
#include "reference/core/error.hpp"

extern "C" {
const transducer::cpu::Kernels* transducer_cpu_kernels_baseline();
#if defined(TX_HAVE_AVX2)
const transducer::cpu::Kernels* transducer_cpu_kernels_avx2();
#endif
#if defined(TX_HAVE_AVX512)
const transducer::cpu::Kernels* transducer_cpu_kernels_avx512();
#endif
}

namespace transducer::cpu {
namespace {

/// The named copy, the best one for "", or nullptr if the build or the processor has none of that name.
const Kernels* find(std::string_view name) {
#if defined(TX_HAVE_AVX512)
  const bool avx512 =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  if (avx512 && (name.empty() || name == "avx512")) return transducer_cpu_kernels_avx512();
#endif
#if defined(TX_HAVE_AVX2)
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  if (avx2 && (name.empty() || name == "avx2")) return transducer_cpu_kernels_avx2();
#endif
  return name.empty() || name == "baseline" ? transducer_cpu_kernels_baseline() : nullptr;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels* const kChosen = [] {
    const char* named = std::getenv("FLASH_TRANSDUCER_ISA");
    const Kernels* found = find(named == nullptr ? "" : named);
    check(found != nullptr, "FLASH_TRANSDUCER_ISA is '", named == nullptr ? "" : named,
          "', expected baseline, avx2 or avx512, built in and supported by this processor; unset "
          "it to "
          "take the best");
    return found;
  }();
  return *kChosen;
}

}  // namespace transducer::cpu
