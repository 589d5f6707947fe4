// SPDX-License-Identifier: Apache-2.0
#include "cpu/parallel.hpp"

#include <omp.h>
#include <pthread.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <algorithm>

#include "reference/core/cancel.hpp"

namespace transducer::cpu {
namespace {

std::atomic<bool> is_forked_child = false;

/// OpenMP's threads do not survive a fork and its runtime waits for them for ever.
[[maybe_unused]] const int kForkHandler =
    pthread_atfork(nullptr, nullptr, [] { is_forked_child = true; });

/// Numbers below the smallest normal one count as 0 while tasks run: a processor takes a hundred times
/// longer over them, and gradients of nearly impossible nodes are full of them.
class FlushDenormals {
 public:
#if defined(__SSE2__)
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }
  ~FlushDenormals() { _mm_setcsr(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned before_;
#endif
};

}  // namespace

int thread_count(const Options& options) {
  if (is_forked_child || omp_in_parallel() != 0) return 1;
  return options.threads > 0 ? options.threads : std::max(1, omp_get_max_threads());
}

void Team::run(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) const {
  if (threads_ == 1 || tasks <= 1) {
    const FlushDenormals flush;
    for (std::int64_t task = 0; task < tasks; ++task) {
      poll_cancelled(options_, caller_);
      body(context, task, 0);
    }
    return;
  }
  // On a busy machine the other threads may take every task of a short loop.
  poll_cancelled(options_, caller_);
  std::atomic<bool> stop = false;
  std::exception_ptr error;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads_)
  for (std::int64_t task = 0; task < tasks; ++task) {
    if (stop.load(std::memory_order_relaxed)) continue;
    const int thread = omp_get_thread_num();
    const FlushDenormals flush;
    try {
      if (thread == 0) poll_cancelled(options_, caller_);
      body(context, task, thread);
    } catch (...) {
      if (!stop.exchange(true)) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace transducer::cpu
