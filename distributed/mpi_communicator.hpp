// SPDX-License-Identifier: Apache-2.0
//
// The collectives by MPI. A rank that waits polls: it sleeps between looks, so that it leaves its core to
// others, and gives up when `cancelled` says so (Ctrl-C, SIGTERM), which a blocking call would not.
// Free of mpi.h: a communicator is named by its Fortran handle, an int in every MPI.
#pragma once

#include <string>

#include "distributed/communicator.hpp"

namespace transducer::distributed {

/// MPI_Init if nobody did so before, and MPI_Finalize at the end if so. One such object per program.
class MpiSession {
 public:
  MpiSession();
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

 private:
  bool owned_ = false;
};

class MpiCommunicator final : public Communicator {
 public:
  using Poll = bool (*)(void*);

  /// A duplicate of MPI_COMM_WORLD, or of the communicator with this Fortran handle (MPI_Comm_c2f). Collective.
  explicit MpiCommunicator(Poll cancelled = nullptr, void* context = nullptr);
  explicit MpiCommunicator(int fortran_handle, Poll cancelled = nullptr, void* context = nullptr);
  ~MpiCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void sum(std::span<double> values) override;
  void sum(std::span<std::int64_t> values) override;
  void maximum(std::span<std::int32_t> values) override;
  Gathered gather(std::span<const std::byte> mine) override;

  /// This rank's number among those of its node, and how many those are. Collective.
  struct Local {
    int rank;
    int size;
  };
  Local on_node() const;

  /// Ends every rank of the program at once, with this exit status. Does not return.
  [[noreturn]] void abort(int status) const;

  /// Bytes that this rank has handed to collectives.
  std::int64_t bytes() const { return bytes_; }

  /// Name and version of the MPI library.
  static std::string library();

 private:
  template <class T>
  void reduce(std::span<T> values, bool is_sum);
  void wait(void* request, const char* what) const;

  int handle_ = 0;  ///< Fortran handle of the duplicate
  int rank_ = 0;
  int size_ = 1;
  std::int64_t bytes_ = 0;
  Poll cancelled_;
  void* context_;
};

}  // namespace transducer::distributed
