// SPDX-License-Identifier: Apache-2.0
//
// A parallel loop over all frames of several utterances, ragged or not.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "cpu/utterance.hpp"

namespace transducer::cpu {

/// body(utterance, t, thread, saw_poison) for each t < frames of each utterance; a body may raise
/// saw_poison, which ends up in its utterance.
template <class Body>
void for_each_frame(const Call& call, std::span<Utterance> utterances, Body&& body) {
  struct Counter {
    std::int64_t first = 0;
    std::atomic<bool> saw_poison = false;
  };
  const auto counters = std::make_unique<Counter[]>(utterances.size());
  std::int64_t total = 0;
  for (std::size_t i = 0; i < utterances.size(); ++i) {
    counters[i].first = total;
    total += utterances[i].frames;
  }
  call.team.for_each(total, [&](std::int64_t task, int thread) {
    std::size_t i = utterances.size() - 1;
    while (counters[i].first > task) --i;
    body(utterances[i], task - counters[i].first, thread, counters[i].saw_poison);
  });
  for (std::size_t i = 0; i < utterances.size(); ++i) {
    utterances[i].saw_poison = utterances[i].saw_poison || counters[i].saw_poison;
  }
}

}  // namespace transducer::cpu
