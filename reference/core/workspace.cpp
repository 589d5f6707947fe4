// SPDX-License-Identifier: Apache-2.0
#include "reference/core/workspace.hpp"

#include <limits>
#include <utility>

namespace transducer {
namespace {

std::size_t round_up(std::size_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

bool aligned(const std::byte* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kWorkspaceAlignment == 0;
}

}  // namespace

std::int64_t checked_product(std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  check(a >= 0 && b >= 0, "a size is negative: ", a < 0 ? a : b, ", expected 0 or more");
  check(a == 0 || b <= kMax / a, "a size of ", a, " x ", b, " does not fit in 63 bits");
  return a * b;
}

void WorkspacePlan::book(std::string name, std::string shape, RegionKind kind, std::int64_t count,
                         std::size_t element_bytes) {
  const auto bytes =
      static_cast<std::size_t>(checked_product(count, static_cast<std::int64_t>(element_bytes)));
  std::size_t& total = kind == RegionKind::scratch ? scratch_bytes_ : saved_bytes_;
  check(bytes <= std::numeric_limits<std::size_t>::max() / 2 - total, "the workspace region ", name,
        " of ", bytes, " bytes does not fit in 63 bits");
  // Aligned where it begins, not where it ends: the last region takes no byte more than it needs.
  const std::size_t offset = round_up(total);
  regions_.push_back({std::move(name), std::move(shape), kind, bytes, kWorkspaceAlignment, offset});
  total = offset + bytes;
}

void WorkspacePlan::note_never_made(std::string name, std::string shape, std::size_t bytes) {
  never_made_.push_back(
      {std::move(name), std::move(shape), RegionKind::scratch, bytes, kWorkspaceAlignment, 0});
}

const WorkspaceRegion& WorkspacePlan::region(std::string_view name) const {
  for (const WorkspaceRegion& region : regions_) {
    if (region.name == name) return region;
  }
  throw std::logic_error(concat("workspace region ", name, " was never booked"));
}

void check_workspace(const WorkspacePlan& plan, const Workspace& workspace,
                     std::int64_t workspace_limit, std::string_view caller) {
  check(workspace_limit <= 0 || plan.scratch_bytes() <= static_cast<std::size_t>(workspace_limit),
        caller, ": workspace_limit is ", workspace_limit, " bytes, expected at least ",
        plan.scratch_bytes(), " because that is the smallest scratch this layer can work in");
  check(workspace.scratch.size() >= plan.scratch_bytes(), caller, ": workspace.scratch has ",
        workspace.scratch.size(), " bytes, expected ", plan.scratch_bytes(),
        " because plan_workspace says so");
  check(workspace.saved.size() >= plan.saved_bytes(), caller, ": workspace.saved has ",
        workspace.saved.size(), " bytes, expected ", plan.saved_bytes(),
        " because plan_workspace says so");
  check(aligned(workspace.scratch.data()) && aligned(workspace.saved.data()), caller,
        ": workspace memory is misaligned, expected addresses that are multiples of ",
        kWorkspaceAlignment);
}

}  // namespace transducer
