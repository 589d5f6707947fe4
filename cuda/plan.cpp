// SPDX-License-Identifier: Apache-2.0
//
// The CUDA layer's memory. Saved: log-sums and posteriors, 20 bytes a lattice node for RNN-T in float32, and
// the rows that the backward works on. Scratch: beta, 8 bytes a node, and small arrays over utterances.
#include <algorithm>

#include "cuda/joint.hpp"
#include "cuda/loss.hpp"
#include "cuda/memory.hpp"

namespace transducer::cuda {
namespace {

std::int64_t frames_of(const LossShape& shape) {
  return checked_product(shape.batch, shape.frames);
}

std::int64_t words_of(const LossShape& shape) { return (shape.labels + 32) / 32; }

std::int64_t ends_of(const LossShape& shape) {
  return checked_product(shape.batch, shape.frames + 1);
}

std::int64_t scan_blocks(const LossShape& shape) {
  return (frames_of(shape) + kFramesPerScan - 1) / kFramesPerScan;
}

/// Words that the strips of a lattice hand over; none where an utterance is one strip.
std::int64_t border_words(const LossShape& shape) {
  const std::int64_t strips = words_of(shape);
  return strips == 1 ? 0
                     : checked_product(checked_product(2 * shape.batch, strips),
                                       border_length(shape.frames + 1));
}

void book_rows(WorkspacePlan& plan, const LossShape& shape, const char* bits, const char* offsets,
               RegionKind kind) {
  plan.book(bits, "[B, T, ceil((U+1)/32)] uint32", kind,
            checked_product(frames_of(shape), words_of(shape)), 4);
  plan.book(offsets, "[B T + 1] int64", kind, frames_of(shape) + 1, 8);
}

RowSet take_rows(const LossShape& shape, const WorkspacePlan& plan, const Workspace& workspace,
                 const char* bits, const char* offsets) {
  RowSet rows;
  rows.bits = take_region<std::uint32_t>(plan, workspace, bits).data();
  rows.offset = take_region<std::int64_t>(plan, workspace, offsets).data();
  rows.frames = static_cast<int>(shape.frames);
  rows.words = static_cast<int>(words_of(shape));
  rows.num_frames = frames_of(shape);
  return rows;
}

}  // namespace

std::int64_t plane_elements(const LossShape& shape) {
  const std::int64_t nodes = checked_product(ends_of(shape), shape.labels + 1);
  return nodes + nodes % 2;
}

WorkspacePlan plan_workspace(const LossShape& shape, const Options& options) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 64;
  check(shape.batch >= 0 && shape.frames >= 0 && shape.labels >= 0 && shape.columns >= 1 &&
            shape.hidden >= 0,
        "plan_workspace: B, T, U and H must be 0 or more and K at least 1, got B = ", shape.batch,
        ", T = ", shape.frames, ", U = ", shape.labels, ", K = ", shape.columns,
        ", H = ", shape.hidden);
  check(ends_of(shape) < kMost && shape.labels < kMost,
        "plan_workspace: the cuda backend takes fewer than 2^31 frames in a batch and labels in an "
        "utterance, got B = ",
        shape.batch, ", T = ", shape.frames, ", U = ", shape.labels);
  check(checked_product(ends_of(shape), (shape.labels + 8) / 8) < kMost && shape.columns < kMost,
        "plan_workspace: the cuda backend takes fewer than 2^34 nodes in a batch and 2^31 columns, "
        "got "
        "B = ",
        shape.batch, ", T = ", shape.frames, ", U = ", shape.labels, ", K = ", shape.columns);
  const RegionKind saved = shape.gradient || shape.apart ? RegionKind::saved : RegionKind::scratch;
  constexpr RegionKind kScratch = RegionKind::scratch;
  const bool full = shape.dtype == DType::float64;
  const std::size_t real = full ? 8 : 4;
  const std::int64_t plane = plane_elements(shape);
  const std::int64_t planes = std::max(shape.taps, 2) + shape.groups;

  WorkspacePlan plan;
  plan.book("node_scores", full ? "[taps + G, B, T, U+1] float64" : "[taps + G, B, T, U+1] float32",
            saved, checked_product(plane, planes), real);
  plan.book("arcs", full ? "[A, B, T, U+1] float64" : "[A, B, T, U+1] float32", saved,
            checked_product(plane, shape.arcs), real);
  plan.book("label_arcs", "[B, U+1] uint32", saved, checked_product(shape.batch, shape.labels + 1),
            4);
  plan.book("start_scores", "[B, T+1] float64", saved, ends_of(shape), 8);
  plan.book("final_scores", "[B, T+1] float64", saved, ends_of(shape), 8);
  plan.book("costs", "[B] float64", saved, shape.batch, 8);
  plan.book("state", "[B] int32", saved, shape.batch, 4);
  book_rows(plan, shape, "kept", "kept_offsets", saved);
  if (!full) {
    plan.book("border", "[B, 2, ceil((U+1)/32), T + 88] uint64", kScratch, 1 + border_words(shape),
              8);
  }
  plan.book("totals", "[B] 8 bytes", kScratch, shape.batch, 8);
  plan.book("saw_poison", "[B] uint32", kScratch, shape.batch, 4);
  plan.book("histogram", "[B, 128] uint32", kScratch, checked_product(shape.batch, kBins), 4);
  plan.book("path_mass", "[B] uint64", kScratch, shape.batch, 8);
  plan.book("threshold", "[B] float64", kScratch, shape.batch, 8);
  plan.book("scale", "[B] float64", kScratch, shape.batch, 8);
  plan.book("block_rows", "[ceil(B T / 1024)] int64", kScratch, scan_blocks(shape), 8);
  if (shape.hidden > 0) book_rows(plan, shape, "reachable", "reachable_offsets", kScratch);
  const auto booked = static_cast<std::int64_t>(plan.scratch_bytes());
  plan.book("beta", "[B, T+1, U+1] 8 bytes", kScratch, plane, 8);
  if (shape.hidden > 0) {
    // The joint source works before and after the lattice, so its pieces lie over beta and go on behind it.
    constexpr std::int64_t kDefaultLimit = std::int64_t{64} << 20;
    const bool limited = options.workspace_limit > 0;
    const std::int64_t available = (limited ? options.workspace_limit : kDefaultLimit) - booked -
                                   static_cast<std::int64_t>(kWorkspaceAlignment);
    const std::int64_t wanted = joint_scratch_bytes(shape, available, limited);
    plan.book("joint", "pieces of W, h and the gradient of the logits, less beta", kScratch,
              std::max<std::int64_t>(wanted - 8 * plane, 0), 1);
  }
  return plan;
}

template <class Real>
Memory<Real> take_memory(const LossShape& shape, const WorkspacePlan& plan,
                         const Workspace& workspace) {
  const auto take = [&]<class T>(const char* name, T*& pointer) {
    pointer = take_region<T>(plan, workspace, name).data();
  };
  Memory<Real> memory;
  take("node_scores", memory.node_scores);
  take("arcs", memory.arcs);
  take("label_arcs", memory.label_arcs);
  take("start_scores", memory.start_scores);
  take("final_scores", memory.final_scores);
  take("costs", memory.costs);
  take("state", memory.state);
  memory.kept = take_rows(shape, plan, workspace, "kept", "kept_offsets");
  memory.alpha = memory.node_scores;
  memory.beta = take_region<double>(plan, workspace, "beta").data();
  if (sizeof(Real) == 4) take("border", memory.border);
  memory.totals = take_region<double>(plan, workspace, "totals").data();
  take("saw_poison", memory.saw_poison);
  take("histogram", memory.histogram);
  take("path_mass", memory.path_mass);
  take("threshold", memory.threshold);
  take("scale", memory.scale);
  take("block_rows", memory.block_rows);
  if (shape.hidden > 0) {
    memory.reachable = take_rows(shape, plan, workspace, "reachable", "reachable_offsets");
    const std::span<std::byte> behind = take_region<std::byte>(plan, workspace, "joint");
    auto* const first = static_cast<std::byte*>(memory.beta);
    memory.joint = {first, behind.data() + behind.size()};
  }
  return memory;
}

template Memory<float> take_memory<float>(const LossShape&, const WorkspacePlan&, const Workspace&);
template Memory<double> take_memory<double>(const LossShape&, const WorkspacePlan&,
                                            const Workspace&);

}  // namespace transducer::cuda
