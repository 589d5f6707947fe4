// SPDX-License-Identifier: Apache-2.0
//
// Every copy of the kernels that this build has and this processor runs.
#pragma once

#include <vector>

#include "cpu/kernels.hpp"

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

inline std::vector<const Kernels*> supported_kernels() {
  std::vector<const Kernels*> all = {transducer_cpu_kernels_baseline()};
#if defined(TX_HAVE_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    all.push_back(transducer_cpu_kernels_avx2());
  }
#endif
#if defined(TX_HAVE_AVX512)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    all.push_back(transducer_cpu_kernels_avx512());
  }
#endif
  return all;
}

}  // namespace transducer::cpu
