// SPDX-License-Identifier: Apache-2.0
//
// Ranks as threads of one process: the collectives by shared memory and a barrier, sums in the order of the ranks.
#pragma once

#include <algorithm>
#include <barrier>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "distributed/communicator.hpp"

namespace transducer::testing {

class ThreadRank final : public distributed::Communicator {
 public:
  struct Shared {
    explicit Shared(int ranks) : barrier(ranks), parts(static_cast<std::size_t>(ranks)) {}
    std::barrier<> barrier;
    std::vector<std::vector<std::byte>> parts;
  };

  ThreadRank(Shared& shared, int rank) : shared_(shared), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(shared_.parts.size()); }
  void sum(std::span<double> values) override {
    combine(values, [](double a, double b) { return a + b; });
  }
  void sum(std::span<std::int64_t> values) override {
    combine(values, [](std::int64_t a, std::int64_t b) { return a + b; });
  }
  void maximum(std::span<std::int32_t> values) override {
    combine(values, [](std::int32_t a, std::int32_t b) { return std::max(a, b); });
  }
  distributed::Gathered gather(std::span<const std::byte> mine) override {
    shared_.parts[static_cast<std::size_t>(rank_)].assign(mine.begin(), mine.end());
    shared_.barrier.arrive_and_wait();
    distributed::Gathered all{.bytes = {}, .offsets = {0}};
    for (const std::vector<std::byte>& part : shared_.parts) {
      all.bytes.insert(all.bytes.end(), part.begin(), part.end());
      all.offsets.push_back(all.bytes.size());
    }
    shared_.barrier.arrive_and_wait();
    return all;
  }

 private:
  template <class T, class Join>
  void combine(std::span<T> values, Join join) {
    const distributed::Gathered all = gather(std::as_bytes(values));
    for (int rank = 0; rank < size(); ++rank) {
      const auto* part = reinterpret_cast<const T*>(all.of(rank).data());
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = rank == 0 ? part[i] : join(values[i], part[i]);
      }
    }
  }

  Shared& shared_;
  int rank_;
};

/// Runs body(communicator) on each of some ranks; the first exception of the lowest rank is thrown again.
inline void on_ranks(int ranks, const std::function<void(distributed::Communicator&)>& body) {
  ThreadRank::Shared shared(ranks);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadRank communicator(shared, rank);
      try {
        body(communicator);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace transducer::testing
