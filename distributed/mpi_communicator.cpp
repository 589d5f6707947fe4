// SPDX-License-Identifier: Apache-2.0
#include "distributed/mpi_communicator.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <type_traits>

#include <mpi.h>

#include "reference/core/error.hpp"

namespace transducer::distributed {
namespace {

/// Counts are int in MPI 3: longer arrays go in pieces.
constexpr std::size_t kMostElements = std::size_t{1} << 28;

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(concat("distributed: ", what, " failed: ", std::string_view(text)));
}

template <class T>
MPI_Datatype mpi_type() {
  if constexpr (std::is_same_v<T, double>) return MPI_DOUBLE;
  if constexpr (std::is_same_v<T, std::int64_t>) return MPI_INT64_T;
  if constexpr (std::is_same_v<T, std::int32_t>) return MPI_INT32_T;
}

bool is_initialized() {
  int flag = 0;
  MPI_Initialized(&flag);
  return flag != 0;
}

bool is_finalized() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

}  // namespace

MpiSession::MpiSession() {
  if (is_initialized()) return;
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  owned_ = true;
}

MpiSession::~MpiSession() {
  if (owned_ && !is_finalized()) MPI_Finalize();
}

MpiCommunicator::MpiCommunicator(Poll cancelled, void* context)
    : MpiCommunicator(MPI_Comm_c2f(MPI_COMM_WORLD), cancelled, context) {}

MpiCommunicator::MpiCommunicator(int fortran_handle, Poll cancelled, void* context)
    : cancelled_(cancelled), context_(context) {
  if (!is_initialized()) throw std::runtime_error("distributed: MPI is not initialised");
  MPI_Comm duplicate = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_Comm_f2c(fortran_handle), &duplicate), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(duplicate, MPI_ERRORS_RETURN);
  MPI_Comm_rank(duplicate, &rank_);
  MPI_Comm_size(duplicate, &size_);
  handle_ = MPI_Comm_c2f(duplicate);
}

MpiCommunicator::~MpiCommunicator() {
  if (is_finalized()) return;
  MPI_Comm comm = MPI_Comm_f2c(handle_);
  MPI_Comm_free(&comm);
}

void MpiCommunicator::wait(void* request, const char* what) const {
  using Clock = std::chrono::steady_clock;
  auto* pending = static_cast<MPI_Request*>(request);
  const Clock::time_point start = Clock::now();
  for (;;) {
    int done = 0;
    check_mpi(MPI_Test(pending, &done, MPI_STATUS_IGNORE), what);
    if (done != 0) return;
    if (cancelled_ != nullptr && cancelled_(context_)) {
      throw Cancelled(concat("distributed: cancelled while waiting for ", what));
    }
    // The longer the wait has been, the longer the sleep: a hundredth of it, at most 1 ms.
    const auto waited = Clock::now() - start;
    if (waited > std::chrono::microseconds(50)) {
      std::this_thread::sleep_for(
          std::min<Clock::duration>(waited / 100, std::chrono::milliseconds(1)));
    }
  }
}

template <class T>
void MpiCommunicator::reduce(std::span<T> values, bool is_sum) {
  if (size_ == 1) return;
  for (std::size_t first = 0; first < values.size(); first += kMostElements) {
    const std::span<T> piece =
        values.subspan(first, std::min(kMostElements, values.size() - first));
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(
        MPI_Iallreduce(MPI_IN_PLACE, piece.data(), static_cast<int>(piece.size()), mpi_type<T>(),
                       is_sum ? MPI_SUM : MPI_MAX, MPI_Comm_f2c(handle_), &request),
        "MPI_Iallreduce");
    wait(&request, "MPI_Iallreduce");
    bytes_ += static_cast<std::int64_t>(piece.size_bytes());
  }
}

void MpiCommunicator::sum(std::span<double> values) { reduce(values, true); }
void MpiCommunicator::sum(std::span<std::int64_t> values) { reduce(values, true); }
void MpiCommunicator::maximum(std::span<std::int32_t> values) { reduce(values, false); }

Gathered MpiCommunicator::gather(std::span<const std::byte> mine) {
  const auto ranks = static_cast<std::size_t>(size_);
  std::vector<std::int64_t> sizes(ranks, 0);
  sizes[static_cast<std::size_t>(rank_)] = static_cast<std::int64_t>(mine.size());
  sum(sizes);
  const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  if (total > std::numeric_limits<int>::max()) {
    throw std::runtime_error(
        concat("distributed: ", total, " bytes in one gather, expected less than 2^31"));
  }
  Gathered all{.bytes = std::vector<std::byte>(static_cast<std::size_t>(total)), .offsets = {0}};
  std::vector<int> counts(ranks);
  std::vector<int> displacements(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    counts[r] = static_cast<int>(sizes[r]);
    displacements[r] = static_cast<int>(all.offsets[r]);
    all.offsets.push_back(all.offsets[r] + static_cast<std::size_t>(sizes[r]));
  }
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallgatherv(mine.data(), static_cast<int>(mine.size()), MPI_BYTE, all.bytes.data(),
                            counts.data(), displacements.data(), MPI_BYTE, MPI_Comm_f2c(handle_),
                            &request),
            "MPI_Iallgatherv");
  wait(&request, "MPI_Iallgatherv");
  bytes_ += static_cast<std::int64_t>(mine.size());
  return all;
}

MpiCommunicator::Local MpiCommunicator::on_node() const {
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(
      MPI_Comm_split_type(MPI_Comm_f2c(handle_), MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node),
      "MPI_Comm_split_type");
  Local local{};
  MPI_Comm_rank(node, &local.rank);
  MPI_Comm_size(node, &local.size);
  MPI_Comm_free(&node);
  return local;
}

void MpiCommunicator::abort(int status) const {
  MPI_Abort(MPI_Comm_f2c(handle_), status);
  std::abort();  // MPI_Abort does not return
}

std::string MpiCommunicator::library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  return {text, static_cast<std::size_t>(length)};
}

}  // namespace transducer::distributed
