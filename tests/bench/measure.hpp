// SPDX-License-Identifier: Apache-2.0
//
// What the benchmark programs measure with: memory in pages of its own, medians, two yardsticks of the same
// run (a copy, large matrix products) and the memory that a call takes beyond what was there before.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <new>
#include <random>
#include <vector>

#include <malloc.h>
#include <omp.h>
#include <sys/mman.h>

#include "cpu/kernels.hpp"

namespace transducer::bench {

/// Memory of its own mapping, in huge pages where the system gives them.
class Buffer {
 public:
  explicit Buffer(std::int64_t count) : bytes_(static_cast<std::size_t>(count) * sizeof(float)) {
    void* address =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) throw std::bad_alloc();
    madvise(address, bytes_, MADV_HUGEPAGE);
    data_ = static_cast<float*>(address);
  }
  ~Buffer() { munmap(data_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  float* data() const { return data_; }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_ / sizeof(float)); }

 private:
  std::size_t bytes_;
  float* data_;
};

inline void fill_normal(const Buffer& buffer, float scale) {
#pragma omp parallel for
  for (std::int64_t block = 0; block < (buffer.size() + 65535) / 65536; ++block) {
    std::mt19937 random(static_cast<unsigned>(block) + 1);
    std::normal_distribution<float> normal(0.0f, scale);
    const std::int64_t end = std::min(buffer.size(), (block + 1) * 65536);
    for (std::int64_t i = block * 65536; i < end; ++i) buffer.data()[i] = normal(random);
  }
}

/// Milliseconds.
struct Timing {
  double median, p10, p90;
};

/// Times `body` after one run that is not counted; `prepare` goes before each, untimed.
inline Timing measure(
    int repeats, const std::function<void()>& body, const std::function<void()>& prepare = [] {}) {
  using Clock = std::chrono::steady_clock;
  prepare();
  body();
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(repeats));
  for (int i = 0; i < repeats; ++i) {
    prepare();
    const auto start = Clock::now();
    body();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  const auto at = [&](double q) {
    return times[static_cast<std::size_t>(std::lround(q * (repeats - 1)))];
  };
  return {at(0.5), at(0.1), at(0.9)};
}

inline void parallel_copy(const Buffer& from, const Buffer& to, int threads) {
#pragma omp parallel for num_threads(threads)
  for (int part = 0; part < threads; ++part) {
    const std::int64_t begin = from.size() * part / threads;
    const std::int64_t end = from.size() * (part + 1) / threads;
    std::memcpy(to.data() + begin, from.data() + begin,
                static_cast<std::size_t>(end - begin) * sizeof(float));
  }
}

/// GFLOP/s of one large product per thread, all at once.
inline double product_rate(int threads) {
  constexpr std::int64_t kSize = 1536;
  std::vector<std::vector<float>> memory(static_cast<std::size_t>(threads));
  for (auto& block : memory) block.assign(3 * kSize * kSize, 0.5f);
  const Timing timing = measure(3, [&] {
#pragma omp parallel for num_threads(threads)
    for (int i = 0; i < threads; ++i) {
      float* a = memory[static_cast<std::size_t>(i)].data();
      cpu::kernels().single.multiply(false, true, false, kSize, kSize, kSize, a, kSize,
                                     a + kSize * kSize, kSize, a + 2 * kSize * kSize, kSize);
    }
  });
  return 2.0 * static_cast<double>(threads) * kSize * kSize * kSize / timing.median / 1e6;
}

/// A line such as "VmHWM:  1234 kB" of /proc/self/status, in MiB; 0 where there is none.
inline double process_memory(const char* name) {
  double found = 0.0;
  if (FILE* file = std::fopen("/proc/self/status", "r")) {
    char line[256];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      if (std::strncmp(line, name, std::strlen(name)) == 0) {
        found = std::strtod(line + std::strlen(name) + 1, nullptr) / 1024.0;
      }
    }
    std::fclose(file);
  }
  return found;
}

/// MiB by which the process grew, at its largest, while `body` ran.
inline double memory_growth(const std::function<void()>& body) {
#if defined(__GLIBC__)
  malloc_trim(0);  // freed memory that was kept would hide what is allocated now
#endif
  if (FILE* file = std::fopen("/proc/self/clear_refs", "w")) {
    std::fputs("5", file);  // forgets the largest size so far
    std::fclose(file);
  }
  const double before = process_memory("VmRSS");
  body();
  return std::max(process_memory("VmHWM") - before, 0.0);
}

}  // namespace transducer::bench
