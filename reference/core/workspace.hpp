// SPDX-License-Identifier: Apache-2.0
//
// The ledger of a call's memory. plan_workspace() of a layer books named regions; the caller
// allocates `scratch_bytes()` and `saved_bytes()` and passes them in; the layer takes its regions
// by name. So the bytes a call needs can be printed without running it.
//
//   scratch   dead after the call
//   saved     from the forward to the backward
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/core/error.hpp"

namespace transducer {

enum class RegionKind : std::uint8_t { scratch, saved };

struct WorkspaceRegion {
  std::string name;
  std::string shape;  ///< for people, in letters: "[T, U+1, A] float64"
  RegionKind kind = RegionKind::scratch;
  std::size_t bytes = 0;
  std::size_t alignment = 0;
  std::size_t offset = 0;  ///< within its kind
};

class WorkspacePlan {
 public:
  /// Books `count` elements of `element_bytes`. Throws InvalidArgument if the bytes pass 2^63.
  void book(std::string name, std::string shape, RegionKind kind, std::int64_t count,
            std::size_t element_bytes);
  /// Names an array that other implementations make and this one does not.
  void note_never_made(std::string name, std::string shape, std::size_t bytes);

  const std::vector<WorkspaceRegion>& regions() const { return regions_; }
  const std::vector<WorkspaceRegion>& never_made() const { return never_made_; }
  std::size_t scratch_bytes() const { return scratch_bytes_; }
  std::size_t saved_bytes() const { return saved_bytes_; }

  /// The region of that name; throws std::logic_error if it was not booked.
  const WorkspaceRegion& region(std::string_view name) const;

 private:
  std::vector<WorkspaceRegion> regions_;
  std::vector<WorkspaceRegion> never_made_;
  std::size_t scratch_bytes_ = 0;
  std::size_t saved_bytes_ = 0;
};

/// Memory that the caller owns, aligned to kWorkspaceAlignment.
struct Workspace {
  std::span<std::byte> scratch;
  std::span<std::byte> saved;
};

inline constexpr std::size_t kWorkspaceAlignment = 64;

/// `a * b`, or InvalidArgument if it passes 2^63 - 1.
std::int64_t checked_product(std::int64_t a, std::int64_t b);

/// Throws InvalidArgument with both numbers if a span is smaller than planned, or misaligned, or if
/// the plan's scratch exceeds a limit > 0.
void check_workspace(const WorkspacePlan& plan, const Workspace& workspace,
                     std::int64_t workspace_limit, std::string_view caller);

/// The booked region as a span of T.
template <class T>
std::span<T> take_region(const WorkspacePlan& plan, const Workspace& workspace,
                         std::string_view name) {
  const WorkspaceRegion& region = plan.region(name);
  const std::span<std::byte> memory =
      region.kind == RegionKind::scratch ? workspace.scratch : workspace.saved;
  return {reinterpret_cast<T*>(memory.data() + region.offset), region.bytes / sizeof(T)};
}

}  // namespace transducer
