// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/check.cuh"
#include "cuda/kernels/lattice_strips.cuh"
#include "cuda/kernels/lattice_tables.cuh"
#include "cuda/kernels/outputs.cuh"
#include "cuda/kernels/rows.cuh"
#include "cuda/stages.hpp"

namespace transducer::cuda {
namespace {

constexpr std::int64_t kMostShared = 96 * 1024;  // compute capability 8.6 has 99 KiB a block

/// Diagonals that a sweep looks back on, and the one it writes.
int diagonals_of(const TapPlan& plan) {
  int longest = 1;
  for (int a = 0; a < plan.num_arcs; ++a) {
    longest = std::max(longest, plan.arcs[a].dt + plan.arcs[a].du);
  }
  return longest + 1;
}

/// Indices of the arcs (1, 0), which may finish, and (0, 1) if the table has these two alone.
struct TwoMoves {
  int blank = -1;
  int label = -1;
  explicit operator bool() const { return blank >= 0 && label >= 0; }
};

TwoMoves two_moves(const TapPlan& plan) {
  TwoMoves moves;
  for (int a = 0; a < plan.num_arcs && plan.num_arcs == 2; ++a) {
    const PlannedArc& arc = plan.arcs[a];
    if (arc.dt == 1 && arc.du == 0 && arc.may_finish) moves.blank = a;
    if (arc.dt == 0 && arc.du == 1) moves.label = a;
  }
  return moves;
}

/// Ticket and border to all ones.
void clear_border(const Call<float>& call, int strips, int rows) {
  const std::int64_t words =
      strips == 1 ? 1 : 1 + 2ll * call.view.batch * strips * border_length(rows);
  check_cuda(
      cudaMemsetAsync(call.memory.border, 0xff, static_cast<std::size_t>(8 * words), call.stream),
      "cudaMemsetAsync");
}

void sweep_strips(const Call<float>& call, const TwoMoves& moves, bool with_beta) {
  const CallView& view = call.view;
  const int strips = (view.rows() + 31) / 32;
  clear_border(call, strips, view.frames);
  const StripsParams params{.call = view,
                            .blank = call.memory.arcs + moves.blank * view.plane,
                            .label = call.memory.arcs + moves.label * view.plane,
                            .alpha = static_cast<float2*>(call.memory.alpha),
                            .beta = static_cast<float2*>(call.memory.beta),
                            .border = call.memory.border + 1,
                            .ticket = reinterpret_cast<unsigned*>(call.memory.border),
                            .strips = strips,
                            .sweeps = with_beta ? 2 : 1};
  constexpr int kBytes = sizeof(StripsShared);
  strips_kernel<<<static_cast<unsigned>(params.sweeps * view.batch * strips), 96, kBytes,
                  call.stream>>>(params);
  check_launch("strips");
  cap_kernel<<<static_cast<unsigned>(view.batch), std::min(256, strips * 32), 0, call.stream>>>(
      params);
  check_launch("cap");
}

/// The arcs of a table by how far they reach; false if the strips cannot take it.
bool fill_table(const TapPlan& plan, TableParams& params) {
  params.own = params.left = -1;
  int codes[kMaxArcs];
  std::fill_n(codes, kMaxArcs, -1);
  for (int a = 0; a < plan.num_arcs; ++a) {
    const int dt = plan.arcs[a].dt;
    const int du = plan.arcs[a].du;
    if (dt + du > kLongestArc) return false;
    int& near = du == 0 ? params.own : params.left;
    if (dt + du == 1 && near < 0) {
      near = a;
    } else {
      codes[params.num_far++] = far_code(dt, du, a);
    }
  }
  for (int i = 0; i < kMaxArcs; i += 4) {
    params.far[i / 4] = {codes[i], codes[i + 1], codes[i + 2], codes[i + 3]};
  }
  return true;
}

/// Whether the table's strips fit into the shared memory of this device's blocks.
bool fits_shared(std::int64_t bytes) {
  int device = 0;
  int most = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "cudaDeviceGetAttribute");
  return bytes + 1024 <= most;
}

/// False if the table does not fit the kernel; nothing is launched then.
bool sweep_table(const Call<float>& call, bool with_beta) {
  const CallView& view = call.view;
  TableParams params{.call = view,
                     .memory = call.memory,
                     .alpha = static_cast<float2*>(call.memory.alpha),
                     .beta = static_cast<float2*>(call.memory.beta),
                     .border = call.memory.border + 1,
                     .ticket = reinterpret_cast<unsigned*>(call.memory.border),
                     .strips = (view.rows() + 31) / 32,
                     .sweeps = with_beta ? 2 : 1};
  const std::int64_t bytes = table_shared_bytes(view.plan.num_arcs);
  if (!fill_table(view.plan, params) || !fits_shared(bytes)) return false;
  clear_border(call, params.strips, view.frames + 1);
  check_cuda(cudaFuncSetAttribute(table_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)),
             "cudaFuncSetAttribute");
  table_kernel<<<static_cast<unsigned>(params.sweeps * view.batch * params.strips), kTableThreads,
                 static_cast<std::size_t>(bytes), call.stream>>>(params);
  check_launch("table");
  return true;
}

template <class Number, class Real>
void sweep(const Call<Real>& call, const LatticeParams<Real>& params) {
  const CallView& view = call.view;
  const int diagonals = diagonals_of(view.plan);
  const std::int64_t bytes = 8ll * diagonals * view.rows();
  const bool shared = bytes <= kMostShared;
  const auto kernel = shared ? sweep_kernel<Number, Real, true> : sweep_kernel<Number, Real, false>;
  if (shared) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(kMostShared)),
               "cudaFuncSetAttribute");
  }
  const int threads = std::min(512, (view.rows() + 31) / 32 * 32);
  kernel<<<2 * view.batch, threads, shared ? static_cast<std::size_t>(bytes) : 0, call.stream>>>(
      params, diagonals);
  check_launch("sweep");
}

template <class Real>
ArcOutputParams<Real> arc_output(const Call<Real>& call, const TensorRef& out, double padding) {
  return {call.view, call.memory, out, nullptr, padding};
}

template <class Real>
void best_path(const Call<Real>& call, const LatticeParams<Real>& params) {
  const CallView& view = call.view;
  best_path_kernel<Real><<<(view.batch + 31) / 32, 32, 0, call.stream>>>(params);
  check_launch("best_path");
  if (view.frames == 0) return;
  clear_arcs_kernel<Real>
      <<<frame_blocks(view.batch, view.frames), frame_threads(), 0, call.stream>>>(params);
  check_launch("clear_arcs");
  mark_path_kernel<Real><<<view.batch, 128, 0, call.stream>>>(params);
  check_launch("mark_path");
}

void prefix_sum(const RowSet& rows, std::int64_t* block_rows, Stream stream) {
  const std::int64_t blocks = (rows.num_frames + kFramesPerScan - 1) / kFramesPerScan;
  if (blocks == 0) {
    check_cuda(cudaMemsetAsync(rows.offset, 0, sizeof(std::int64_t), stream), "cudaMemsetAsync");
    return;
  }
  const auto grid = static_cast<unsigned>(blocks);
  scan_frames_kernel<<<grid, kFramesPerScan, 0, stream>>>(rows, block_rows);
  check_launch("scan_frames");
  add_blocks_kernel<<<grid, kFramesPerScan, 0, stream>>>(rows, block_rows);
  check_launch("add_blocks");
}

template <class Number, class Real>
void run(const Call<Real>& call, bool posteriors, double skip_mass) {
  const CallView& view = call.view;
  const LossResult& result = call.result;
  const LatticeParams<Real> params{view, call.memory, call.memory.totals};
  const dim3 frames = frame_threads();
  const unsigned frame_grid = frame_blocks(view.batch, view.frames);
  const unsigned warp_grid = static_cast<unsigned>((view.batch + 3) / 4);
  constexpr bool kBest = std::is_same_v<Number, LogNumber<true>>;

  const TwoMoves moves = two_moves(view.plan);
  const bool ends_given =
      call.request.start_scores.defined() || call.request.final_scores.defined();
  if constexpr (std::is_same_v<Number, MantissaExponent>) {
    const bool with_beta = posteriors || result.beta.defined();
    if (moves && !ends_given) {
      sweep_strips(call, moves, with_beta);
    } else if (!sweep_table(call, with_beta)) {
      sweep<Number>(call, params);
    }
  } else {
    sweep<Number>(call, params);
  }
  finish_kernel<Number, Real><<<warp_grid, dim3(32, 4), 0, call.stream>>>(params, ends_given);
  check_launch("finish");
  for (const auto& [out, states] :
       {std::pair{result.alpha, call.memory.alpha}, std::pair{result.beta, call.memory.beta}}) {
    if (!out.defined()) continue;
    write_states_kernel<Number>
        <<<frame_blocks(view.batch, view.frames + 1), frames, 0, call.stream>>>(view, states, out);
    check_launch("write_states");
  }
  if (!posteriors) return;
  if constexpr (kBest) {
    best_path(call, params);
  } else {
    if (frame_grid > 0) {
      posteriors_kernel<Number, Real><<<frame_grid, frames, 0, call.stream>>>(params);
      check_launch("posteriors");
    }
    if (ends_given || result.occupancy.defined()) {
      boundary_posteriors_kernel<Number, Real><<<warp_grid, dim3(32, 4), 0, call.stream>>>(params);
      check_launch("boundary_posteriors");
    }
  }
  thresholds_kernel<Real>
      <<<warp_grid, dim3(32, 4), 0, call.stream>>>(params, kBest ? 0.0 : skip_mass);
  check_launch("thresholds");
  if (frame_grid > 0) {
    kept_rows_kernel<Real><<<frame_grid, frames, 0, call.stream>>>(params);
    check_launch("kept_rows");
  }
  prefix_sum(call.memory.kept, call.memory.block_rows, call.stream);
  if (result.arc_posterior.defined() && frame_grid > 0) {
    write_arcs_kernel<Real>
        <<<frame_grid, frames, 0, call.stream>>>(arc_output(call, result.arc_posterior, 0.0));
    check_launch("write_arcs");
  }
  if (result.occupancy.defined() && frame_grid > 0) {
    write_occupancy_kernel<Real>
        <<<frame_grid, frames, 0, call.stream>>>(arc_output(call, result.occupancy, 0.0));
    check_launch("write_occupancy");
  }
  if (result.skipped_mass.defined()) {
    skipped_mass_kernel<Real>
        <<<view.batch, 256, 0, call.stream>>>(arc_output(call, result.skipped_mass, 0.0));
    check_launch("skipped_mass");
  }
}

}  // namespace

template <class Real>
void lattice(const Call<Real>& call, bool posteriors, double skip_mass) {
  if (call.view.batch == 0) return;
  if (call.request.semiring == Semiring::max) {
    run<LogNumber<true>>(call, posteriors, skip_mass);
  } else if constexpr (std::is_same_v<Real, double>) {
    run<LogNumber<false>>(call, posteriors, skip_mass);
  } else {
    run<MantissaExponent>(call, posteriors, skip_mass);
  }
}

template <class Real>
void write_arc_weights(const Call<Real>& call) {
  const unsigned grid = frame_blocks(call.view.batch, call.view.frames);
  if (grid == 0 || !call.result.arc_weights.defined()) return;
  write_arcs_kernel<Real><<<grid, frame_threads(), 0, call.stream>>>(
      arc_output(call, call.result.arc_weights, -INFINITY));
  check_launch("write_arcs");
}

template <class Real>
void load_weights_gradient(const Call<Real>& call, const TensorRef& weights_gradient) {
  const CallView& view = call.view;
  const unsigned grid = frame_blocks(view.batch, view.frames);
  if (grid > 0) {
    weights_gradient_kernel<Real><<<grid, frame_threads(), 0, call.stream>>>(
        {view, call.memory, call.memory.totals}, weights_gradient);
    check_launch("weights_gradient");
  }
  prefix_sum(call.memory.kept, call.memory.block_rows, call.stream);
}

template <class Real>
void reachable_rows(const Call<Real>& call) {
  const CallView& view = call.view;
  const unsigned grid = frame_blocks(view.batch, view.frames);
  if (grid > 0) {
    reachable_rows_kernel<<<grid, frame_threads(), 0, call.stream>>>({view, call.memory.reachable});
    check_launch("reachable_rows");
  }
  prefix_sum(call.memory.reachable, call.memory.block_rows, call.stream);
}

template void lattice<float>(const Call<float>&, bool, double);
template void lattice<double>(const Call<double>&, bool, double);
template void write_arc_weights<float>(const Call<float>&);
template void write_arc_weights<double>(const Call<double>&);
template void load_weights_gradient<float>(const Call<float>&, const TensorRef&);
template void load_weights_gradient<double>(const Call<double>&, const TensorRef&);
template void reachable_rows<float>(const Call<float>&);
template void reachable_rows<double>(const Call<double>&);

}  // namespace transducer::cuda
