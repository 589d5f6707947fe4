// SPDX-License-Identifier: Apache-2.0
#include "distributed/agreement.hpp"

#include <exception>
#include <stdexcept>
#include <string>

#include "reference/core/error.hpp"

namespace transducer::distributed {
namespace {

/// The first byte that a rank hands over.
enum class Outcome : std::uint8_t { done, invalid, failed };

void store_failure(Outcome outcome, std::string_view message, std::vector<std::byte>& bytes) {
  bytes = {static_cast<std::byte>(outcome)};
  for (const char c : message) bytes.push_back(static_cast<std::byte>(c));
}

void throw_failure(std::string_view caller, int rank, std::span<const std::byte> bytes) {
  std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 1, bytes.size() - 1);
  // The layers name the caller themselves.
  if (text.starts_with(concat(caller, ": "))) text.remove_prefix(caller.size() + 2);
  const std::string message = concat(caller, ": rank ", rank, ": ", text);
  if (static_cast<Outcome>(bytes[0]) == Outcome::invalid) throw InvalidArgument(message);
  throw std::runtime_error(message);
}

}  // namespace

Gathered gather_or_throw(std::string_view caller, Communicator& communicator,
                         const std::function<std::vector<std::byte>()>& work) {
  std::vector<std::byte> mine;
  std::exception_ptr cancelled;
  try {
    mine = work();
    mine.insert(mine.begin(), static_cast<std::byte>(Outcome::done));
  } catch (const InvalidArgument& error) {
    store_failure(Outcome::invalid, error.what(), mine);
  } catch (const Cancelled& error) {
    cancelled = std::current_exception();
    store_failure(Outcome::failed, error.what(), mine);
  } catch (const std::exception& error) {
    store_failure(Outcome::failed, error.what(), mine);
  }
  const Gathered raw = communicator.gather(mine);
  // It carries the caller's own reason, such as Python's KeyboardInterrupt.
  if (cancelled) std::rethrow_exception(cancelled);
  Gathered all{.bytes = {}, .offsets = {0}};
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const std::span<const std::byte> part = raw.of(rank);
    if (static_cast<Outcome>(part[0]) != Outcome::done) throw_failure(caller, rank, part);
    all.bytes.insert(all.bytes.end(), part.begin() + 1, part.end());
    all.offsets.push_back(all.bytes.size());
  }
  return all;
}

}  // namespace transducer::distributed
