// SPDX-License-Identifier: Apache-2.0
//
// The collectives that this layer uses, on host memory. All ranks call each of them in the same order;
// each returns when its result is there. `SingleProcess` is the whole interface for one rank, `mpi_communicator.hpp`
// has the one for MPI. Device memory takes another interface, with a stream, when it comes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace transducer::distributed {

/// What every rank handed over, in the order of the ranks.
struct Gathered {
  std::vector<std::byte> bytes;
  std::vector<std::size_t> offsets;  // [ranks + 1]

  std::span<const std::byte> of(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return std::span(bytes).subspan(offsets[r], offsets[r + 1] - offsets[r]);
  }
};

class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Replaces each element by its sum over the ranks; every rank gets the same bits.
  virtual void sum(std::span<double> values) = 0;
  virtual void sum(std::span<std::int64_t> values) = 0;
  /// Replaces each element by its maximum over the ranks.
  virtual void maximum(std::span<std::int32_t> values) = 0;
  /// Hands every rank the bytes of all; their number may differ from rank to rank.
  virtual Gathered gather(std::span<const std::byte> mine) = 0;
};

/// One rank: nothing to do.
class SingleProcess final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void sum(std::span<double> /*values*/) override {}
  void sum(std::span<std::int64_t> /*values*/) override {}
  void maximum(std::span<std::int32_t> /*values*/) override {}
  Gathered gather(std::span<const std::byte> mine) override {
    return {.bytes = {mine.begin(), mine.end()}, .offsets = {0, mine.size()}};
  }
};

}  // namespace transducer::distributed
