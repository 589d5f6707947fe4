// SPDX-License-Identifier: Apache-2.0
//
// Threads: who runs what, errors out of parallel loops, cancellation, and forked children.
//
// Work is split into tasks whose number and content depend on the shapes alone; threads take tasks in
// any order and every task writes memory of its own. So the bits do not depend on the thread count.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <string_view>

#include "reference/core/request.hpp"

namespace transducer::cpu {

/// Threads to use: `options.threads`, else OMP_NUM_THREADS or the cores there are; 1 in a forked child,
/// where OpenMP's threads no longer exist, and 1 inside somebody else's parallel region.
int thread_count(const Options& options);

class Team {
 public:
  Team(const Options& options, std::string_view caller)
      : options_(options), caller_(caller), threads_(thread_count(options)) {}

  int threads() const { return threads_; }

  /// body(task, thread) for each task; returns when all are done. The first exception is thrown again
  /// here. The cancel callback is polled by the calling thread, between tasks.
  template <class Body>
  void for_each(std::int64_t tasks, Body&& body) const {
    run(
        tasks,
        [](void* context, std::int64_t task, int thread) {
          (*static_cast<Body*>(context))(task, thread);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  void run(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) const;

  const Options& options_;
  std::string_view caller_;
  int threads_;
};

}  // namespace transducer::cpu
