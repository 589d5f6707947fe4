// SPDX-License-Identifier: Apache-2.0
#include "cpu/joint.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/gradient.hpp"
#include "cpu/rows.hpp"
#include "cpu/scores.hpp"
#include "reference/core/philox.hpp"

namespace transducer::cpu {
namespace {

static_assert(kTileRows <= kBlockNodes);

std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

/// The regions of one call, in its arithmetic type.
template <class Real>
struct JointArrays {
  JointArrays(const Call& call, const WorkspacePlan& plan, const Workspace& workspace)
      : source(std::get<JointSource>(call.request.source)),
        hidden(call.valid.shape.hidden),
        columns(call.valid.shape.columns) {
    const auto take = [&](const char* name) {
      return take_region<Real>(plan, workspace, name).data();
    };
    weight = take("joint_weight");
    bias = take("joint_bias");
    encoder = take("joint_encoder");
    predictor = take("joint_predictor");
    tiles = take("joint_tiles");
    if (!call.valid.shape.gradient) return;
    chunk_hidden = take("joint_chunk_hidden");
    chunk_gradient = take("joint_chunk_gradient");
    chunk_hidden_gradient = take("joint_chunk_hidden_gradient");
    encoder_gradient = take("joint_encoder_gradient");
    predictor_gradient = take("joint_predictor_gradient");
    weight_gradient = take("joint_weight_gradient");
    bias_gradient = take("joint_bias_gradient");
    rows = take_region<std::int64_t>(plan, workspace, "joint_rows").data();
    weight_is_finite =
        std::all_of(weight, weight + columns * hidden, [](Real w) { return std::isfinite(w); });
  }

  const JointSource& source;
  std::int64_t hidden;             // H
  std::int64_t columns;            // K
  Real* weight;                    // [K rounded up to a tile, H]
  Real* bias;                      // [K]
  Real* encoder;                   // [T, H] of one utterance
  Real* predictor;                 // [U+1, H] of one utterance
  Real* tiles;                     // per thread: hidden [kTileRows, H], z [kTileRows, kTileColumns]
  Real* chunk_hidden = nullptr;    // [kChunkRows, H]
  Real* chunk_gradient = nullptr;  // [kChunkRows, kTileColumns]
  Real* chunk_hidden_gradient = nullptr;  // [kChunkRows, H]
  Real* encoder_gradient = nullptr;       // [T, H] of one utterance
  Real* predictor_gradient = nullptr;     // [U+1, H] of one utterance
  Real* weight_gradient = nullptr;        // [K rounded up to a tile, H]
  Real* bias_gradient = nullptr;          // [K rounded up to a tile]
  std::int64_t* rows = nullptr;           // [T (U+1)] kept rows, t (U+1) + u
  bool weight_is_finite = true;           ///< no NaN or infinity in W

  Real* hidden_tile(int thread) const {
    return tiles + thread * kTileRows * (hidden + kTileColumns);
  }
  Real* logit_tile(int thread) const { return hidden_tile(thread) + kTileRows * hidden; }

  /// Columns of the block that starts at `first`, and the same rounded up to what a product takes.
  std::int64_t block_columns(std::int64_t first) const {
    return std::min(kTileColumns, columns - first);
  }
  static std::int64_t padded(std::int64_t count) { return round_up(count, 16); }
};

double predictor_factor(const JointSource& source, const Utterance& utterance, std::int64_t u) {
  if (!source.predictor_mask.defined()) return 1.0;
  return read_real(source.predictor_mask, {utterance.batch_index, u});
}

std::int64_t utterance_id(const JointSource& source, const Utterance& utterance) {
  return source.utterance_ids.defined() ? read_index(source.utterance_ids, {utterance.batch_index})
                                        : utterance.batch_index;
}

/// Multiplies a row of H units by the dropout mask of (t, u).
template <class Real>
void apply_dropout(const JointSource& source, const Utterance& utterance, std::int64_t t,
                   std::int64_t u, std::int64_t hidden, Real* row) {
  if (source.dropout == 0.0) return;
  const std::uint32_t threshold = dropout_threshold(source.dropout);
  const Real scale = static_cast<Real>(1.0 / (1.0 - source.dropout));
  const std::int64_t id = utterance_id(source, utterance);
  for (std::int64_t block = 0; block * 8 < hidden; ++block) {
    const DropoutLanes lanes = dropout_lanes(source.seed, id, t, u, block);
    const std::int64_t end = std::min<std::int64_t>(8, hidden - block * 8);
    for (std::int64_t lane = 0; lane < end; ++lane) {
      Real& unit = row[block * 8 + lane];
      unit = lanes.lanes[lane] >= threshold ? unit * scale : Real(0);
    }
  }
}

/// Widens E and P of one utterance.
template <class Real>
void load_inputs(const Call& call, const Utterance& utterance, const JointArrays<Real>& arrays) {
  const auto load = [&](const TensorRef& tensor, std::int64_t count, Real* target) {
    call.team.for_each(count, [&](std::int64_t i, int) {
      Real* row = target + i * arrays.hidden;
      const Real* from = row_or_copy(tensor, {utterance.batch_index, i}, row);
      if (from != row) std::copy_n(from, arrays.hidden, row);
    });
  };
  load(arrays.source.encoder, utterance.frames, arrays.encoder);
  load(arrays.source.predictor, utterance.rows(), arrays.predictor);
}

/// h of lattice row `index`, or zeros past the end.
template <class Real>
void make_hidden(const Call& call, const Utterance& utterance, const JointArrays<Real>& arrays,
                 std::int64_t index, Real* row) {
  const std::int64_t t = index / utterance.rows();
  const std::int64_t u = index % utterance.rows();
  row_kernels<Real>(call.kernels)
      .activate(static_cast<int>(arrays.source.activation), arrays.encoder + t * arrays.hidden,
                arrays.predictor + u * arrays.hidden,
                static_cast<Real>(predictor_factor(arrays.source, utterance, u)), arrays.hidden,
                row);
  apply_dropout(arrays.source, utterance, t, u, arrays.hidden, row);
}

/// z of a tile for the column block at `first`: h W^T + c, in a tile of leading dimension kTileColumns.
template <class Real>
void make_logits(const Call& call, const JointArrays<Real>& arrays, const Real* hidden_tile,
                 std::int64_t first, Real* logits) {
  const std::int64_t count = arrays.block_columns(first);
  const std::int64_t padded = JointArrays<Real>::padded(count);
  row_kernels<Real>(call.kernels)
      .multiply(false, true, false, kTileRows, padded, arrays.hidden, hidden_tile, arrays.hidden,
                arrays.weight + first * arrays.hidden, arrays.hidden, logits, kTileColumns);
  for (std::int64_t r = 0; r < kTileRows; ++r) {
    Real* row = logits + r * kTileColumns;
    for (std::int64_t k = 0; k < count; ++k) row[k] += arrays.bias[first + k];
  }
}

template <class Real>
void scores_tile(const Call& call, const JointArrays<Real>& arrays, std::int64_t first_row,
                 int thread, Utterance& utterance, std::atomic<bool>& saw_poison) {
  const std::int64_t total = utterance.frames * utterance.rows();
  const std::int64_t rows = std::min(kTileRows, total - first_row);
  Real* hidden = arrays.hidden_tile(thread);
  Real* logits = arrays.logit_tile(thread);
  for (std::int64_t r = 0; r < rows; ++r) {
    make_hidden(call, utterance, arrays, first_row + r, hidden + r * arrays.hidden);
  }
  std::fill(hidden + rows * arrays.hidden, hidden + kTileRows * arrays.hidden, Real(0));

  // The tile's rows of each frame it touches.
  const auto for_each_frame_part = [&](auto&& body) {
    for (std::int64_t r = 0; r < rows;) {
      const std::int64_t t = (first_row + r) / utterance.rows();
      const std::int64_t u = (first_row + r) % utterance.rows();
      const std::int64_t count = std::min(rows - r, utterance.rows() - u);
      body(r, count, t, u);
      r += count;
    }
  };
  NodeBlock block;
  clear_nodes(call, rows, block);
  for (std::int64_t first = 0; first < arrays.columns; first += kTileColumns) {
    make_logits(call, arrays, hidden, first, logits);
    for_each_frame_part([&](std::int64_t r, std::int64_t count, std::int64_t, std::int64_t u) {
      observe_rows<Real>(call, utterance,
                         {.x = logits + r * kTileColumns,
                          .stride = kTileColumns,
                          .rows = count,
                          .first = first,
                          .count = arrays.block_columns(first),
                          .node = r,
                          .u = u},
                         block);
    });
  }
  for_each_frame_part([&](std::int64_t r, std::int64_t count, std::int64_t t, std::int64_t u) {
    finish_nodes(call, block, r, count, t, u, utterance, saw_poison);
  });
}

/// Lists the rows of an utterance that have a gradient; returns their number.
std::int64_t list_kept_rows(const Call& call, const Utterance& utterance, std::int64_t* rows) {
  std::int64_t kept = 0;
  NodeFlow flow;
  for (std::int64_t t = 0; t < utterance.frames && !utterance.poisoned; ++t) {
    for (std::int64_t u = 0; u < utterance.rows(); u += kBlockNodes) {
      const std::int64_t count = std::min(kBlockNodes, utterance.rows() - u);
      gather_flow(call, utterance, t, u, count, 0, flow);
      for (std::int64_t i = 0; i < count; ++i) {
        if (!flow.empty[i]) rows[kept++] = t * utterance.rows() + u + i;
      }
    }
  }
  return kept;
}

/// dh = or += G W where W holds NaN or infinities: no row that is computed reads those, so their G is 0
/// and they are passed over, where a product would make NaN of them.
template <class Real>
void multiply_skipping_zeros(const Real* gradient, const Real* weight, std::int64_t columns,
                             std::int64_t hidden, bool accumulate, Real* hidden_gradient) {
  for (std::int64_t r = 0; r < kTileRows; ++r) {
    Real* out = hidden_gradient + r * hidden;
    if (!accumulate) std::fill_n(out, hidden, Real(0));
    for (std::int64_t k = 0; k < columns; ++k) {
      const Real g = gradient[r * kTileColumns + k];
      for (std::int64_t h = 0; h < hidden && g != Real(0); ++h)
        out[h] += g * weight[k * hidden + h];
    }
  }
}

/// G of one tile of the chunk for one column block, and its part of dh.
template <class Real>
void gradient_tile(const Call& call, const JointArrays<Real>& arrays, const Utterance& utterance,
                   const std::int64_t* rows, std::int64_t count, std::int64_t tile,
                   std::int64_t first, int thread) {
  const std::int64_t columns = arrays.block_columns(first);
  const std::int64_t padded = JointArrays<Real>::padded(columns);
  const Real* hidden = arrays.chunk_hidden + tile * kTileRows * arrays.hidden;
  Real* gradient = arrays.chunk_gradient + tile * kTileRows * kTileColumns;
  Real* logits = arrays.logit_tile(thread);
  make_logits(call, arrays, hidden, first, logits);
  NodeFlow flow;
  for (std::int64_t r = 0; r < kTileRows; ++r) {
    Real* out = gradient + r * kTileColumns;
    const std::int64_t position = tile * kTileRows + r;
    if (position >= count) {
      std::fill_n(out, padded, Real(0));
      continue;
    }
    const std::int64_t t = rows[position] / utterance.rows();
    const std::int64_t u = rows[position] % utterance.rows();
    gather_flow(call, utterance, t, u, 1, r, flow);
    fill_row<Real>(call, utterance, flow, {.node = r, .t = t, .u = u},
                   {.x = logits + r * kTileColumns, .first = first, .count = columns}, out);
    std::fill(out + columns, out + padded, Real(0));
  }
  const Real* weight = arrays.weight + first * arrays.hidden;
  Real* hidden_gradient = arrays.chunk_hidden_gradient + tile * kTileRows * arrays.hidden;
  if (!arrays.weight_is_finite) {
    multiply_skipping_zeros(gradient, weight, columns, arrays.hidden, first > 0, hidden_gradient);
    return;
  }
  row_kernels<Real>(call.kernels)
      .multiply(false, false, first > 0, kTileRows, arrays.hidden, padded, gradient, kTileColumns,
                weight, arrays.hidden, hidden_gradient, arrays.hidden);
}

/// dW and dc of kTileRows columns of the block at `first`, over the whole chunk.
template <class Real>
void weight_tile(const Call& call, const JointArrays<Real>& arrays, std::int64_t tiles,
                 std::int64_t first, std::int64_t task) {
  const std::int64_t begin = task * kTileRows;
  const std::int64_t columns =
      std::min(kTileRows, JointArrays<Real>::padded(arrays.block_columns(first)) - begin);
  const Real* gradient = arrays.chunk_gradient + begin;
  row_kernels<Real>(call.kernels)
      .multiply(true, false, true, columns, arrays.hidden, tiles * kTileRows, gradient,
                kTileColumns, arrays.chunk_hidden, arrays.hidden,
                arrays.weight_gradient + (first + begin) * arrays.hidden, arrays.hidden);
  for (std::int64_t r = 0; r < tiles * kTileRows; ++r) {
    for (std::int64_t k = 0; k < columns; ++k) {
      arrays.bias_gradient[first + begin + k] += gradient[r * kTileColumns + k];
    }
  }
}

/// dE and dP of kSumColumns units, over the chunk in row order.
template <class Real>
void sum_rows(const JointArrays<Real>& arrays, const Utterance& utterance, const std::int64_t* rows,
              std::int64_t count, std::int64_t task) {
  const std::int64_t begin = task * kSumColumns;
  const std::int64_t width = std::min(kSumColumns, arrays.hidden - begin);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t t = rows[i] / utterance.rows();
    const std::int64_t u = rows[i] % utterance.rows();
    const Real factor = static_cast<Real>(predictor_factor(arrays.source, utterance, u));
    const Real* from = arrays.chunk_hidden_gradient + i * arrays.hidden + begin;
    Real* encoder = arrays.encoder_gradient + t * arrays.hidden + begin;
    Real* predictor = arrays.predictor_gradient + u * arrays.hidden + begin;
    for (std::int64_t h = 0; h < width; ++h) {
      encoder[h] += from[h];
      predictor[h] += factor * from[h];
    }
  }
}

template <class Real>
void gradient_chunk(const Call& call, const JointArrays<Real>& arrays, const Utterance& utterance,
                    const std::int64_t* rows, std::int64_t count) {
  const std::int64_t tiles = round_up(count, kTileRows) / kTileRows;
  call.team.for_each(tiles * kTileRows, [&](std::int64_t r, int) {
    Real* row = arrays.chunk_hidden + r * arrays.hidden;
    if (r < count) {
      make_hidden(call, utterance, arrays, rows[r], row);
    } else {
      std::fill_n(row, arrays.hidden, Real(0));
    }
  });
  for (std::int64_t first = 0; first < arrays.columns; first += kTileColumns) {
    call.team.for_each(tiles, [&](std::int64_t tile, int thread) {
      gradient_tile(call, arrays, utterance, rows, count, tile, first, thread);
    });
    const std::int64_t padded = JointArrays<Real>::padded(arrays.block_columns(first));
    call.team.for_each(round_up(padded, kTileRows) / kTileRows, [&](std::int64_t task, int) {
      weight_tile(call, arrays, tiles, first, task);
    });
  }
  call.team.for_each(count, [&](std::int64_t r, int) {
    const std::int64_t t = rows[r] / utterance.rows();
    const std::int64_t u = rows[r] % utterance.rows();
    Real* row = arrays.chunk_hidden_gradient + r * arrays.hidden;
    row_kernels<Real>(call.kernels)
        .activate_backward(static_cast<int>(arrays.source.activation),
                           arrays.encoder + t * arrays.hidden, arrays.predictor + u * arrays.hidden,
                           static_cast<Real>(predictor_factor(arrays.source, utterance, u)),
                           arrays.hidden, row);
    // Last: the derivative of a dropped unit may be NaN.
    apply_dropout(arrays.source, utterance, t, u, arrays.hidden, row);
  });
  call.team.for_each(
      round_up(arrays.hidden, kSumColumns) / kSumColumns,
      [&](std::int64_t task, int) { sum_rows(arrays, utterance, rows, count, task); });
}

/// Rows 0 .. valid - 1 of `sum` into the result, zeros below.
template <class Real>
void write_input_gradient(const TensorRef& tensor, std::int64_t batch_index, std::int64_t valid,
                          std::int64_t hidden, Real* sum) {
  if (!tensor.defined()) return;
  for (std::int64_t r = 0; r < tensor.extent(1); ++r) {
    Real* row = sum + r * hidden;
    if (r >= valid) std::fill_n(row, hidden, Real(0));
    round_row(tensor, {batch_index, r}, row);
  }
}

template <class Real>
void utterance_gradient(const Call& call, const JointArrays<Real>& arrays,
                        const Utterance& utterance) {
  const LossShape& shape = call.valid.shape;
  const Real start = utterance.poisoned ? std::numeric_limits<Real>::quiet_NaN() : Real(0);
  std::fill_n(arrays.encoder_gradient, shape.frames * arrays.hidden, start);
  std::fill_n(arrays.predictor_gradient, (shape.labels + 1) * arrays.hidden, start);
  const std::int64_t kept = list_kept_rows(call, utterance, arrays.rows);
  if (kept > 0) load_inputs(call, utterance, arrays);
  for (std::int64_t first = 0; first < kept; first += kChunkRows) {
    gradient_chunk(call, arrays, utterance, arrays.rows + first,
                   std::min(kChunkRows, kept - first));
  }
  write_input_gradient(call.result.encoder_gradient, utterance.batch_index, utterance.frames,
                       arrays.hidden, arrays.encoder_gradient);
  write_input_gradient(call.result.predictor_gradient, utterance.batch_index,
                       utterance.frames > 0 ? utterance.rows() : 0, arrays.hidden,
                       arrays.predictor_gradient);
}

template <class Body>
void in_arithmetic_type(const Call& call, Body&& body) {
  if (call.valid.shape.dtype == DType::float64) {
    body.template operator()<double>();
  } else {
    body.template operator()<float>();
  }
}

}  // namespace

void plan_joint(const LossShape& shape, int threads, WorkspacePlan& plan) {
  const std::size_t bytes = shape.dtype == DType::float64 ? 8 : 4;
  constexpr auto kScratch = RegionKind::scratch;
  const std::int64_t hidden = shape.hidden;
  const std::int64_t columns = round_up(shape.columns, kTileColumns);
  const auto book = [&](const char* name, const char* axes, std::int64_t count) {
    plan.book(name, axes, kScratch, count, bytes);
  };
  book("joint_weight", "[K, H]", checked_product(columns, hidden));
  book("joint_bias", "[K]", columns);
  book("joint_encoder", "[T, H]", checked_product(shape.frames, hidden));
  book("joint_predictor", "[U+1, H]", checked_product(shape.labels + 1, hidden));
  book("joint_tiles", "threads x [128, H + 1024]",
       checked_product(threads * kTileRows, hidden + kTileColumns));
  if (shape.gradient) {
    book("joint_chunk_hidden", "[1024, H]", checked_product(kChunkRows, hidden));
    book("joint_chunk_gradient", "[1024, 1024]", kChunkRows * kTileColumns);
    book("joint_chunk_hidden_gradient", "[1024, H]", checked_product(kChunkRows, hidden));
    book("joint_encoder_gradient", "[T, H]", checked_product(shape.frames, hidden));
    book("joint_predictor_gradient", "[U+1, H]", checked_product(shape.labels + 1, hidden));
    book("joint_weight_gradient", "[K, H]", checked_product(columns, hidden));
    book("joint_bias_gradient", "[K]", columns);
    plan.book("joint_rows", "[T (U+1)] int64", kScratch,
              checked_product(shape.frames, shape.labels + 1), sizeof(std::int64_t));
  }
  const std::int64_t joint = checked_product(
      checked_product(shape.batch, checked_product(shape.frames, shape.labels + 1)), shape.columns);
  plan.note_never_made("logits", "[B, T, U+1, K]",
                       static_cast<std::size_t>(checked_product(
                           joint, static_cast<std::int64_t>(dtype_bytes(shape.dtype)))));
}

void begin_joint(const Call& call, const WorkspacePlan& plan, const Workspace& workspace) {
  in_arithmetic_type(call, [&]<class Real>() {
    const JointArrays<Real> arrays(call, plan, workspace);
    const std::int64_t columns = round_up(arrays.columns, kTileColumns);
    for (std::int64_t k = 0; k < arrays.columns; ++k) {
      Real* row = arrays.weight + k * arrays.hidden;
      const Real* from = row_or_copy(arrays.source.weight, {k}, row);
      if (from != row) std::copy_n(from, arrays.hidden, row);
      arrays.bias[k] = arrays.source.bias.defined()
                           ? static_cast<Real>(read_real(arrays.source.bias, {k}))
                           : Real(0);
    }
    std::fill(arrays.weight + arrays.columns * arrays.hidden,
              arrays.weight + columns * arrays.hidden, Real(0));
    if (!call.valid.shape.gradient) return;
    std::fill_n(arrays.weight_gradient, columns * arrays.hidden, Real(0));
    std::fill_n(arrays.bias_gradient, columns, Real(0));
  });
}

void joint_scores(const Call& call, std::span<Utterance> utterances, const WorkspacePlan& plan,
                  const Workspace& workspace) {
  in_arithmetic_type(call, [&]<class Real>() {
    const JointArrays<Real> arrays(call, plan, workspace);
    for (Utterance& utterance : utterances) {
      if (utterance.frames == 0) continue;
      load_inputs(call, utterance, arrays);
      std::atomic<bool> saw_poison = false;
      const std::int64_t rows = utterance.frames * utterance.rows();
      call.team.for_each(round_up(rows, kTileRows) / kTileRows, [&](std::int64_t tile, int thread) {
        scores_tile(call, arrays, tile * kTileRows, thread, utterance, saw_poison);
      });
      utterance.saw_poison = utterance.saw_poison || saw_poison;
    }
  });
}

void joint_gradient(const Call& call, std::span<Utterance> utterances, const WorkspacePlan& plan,
                    const Workspace& workspace) {
  in_arithmetic_type(call, [&]<class Real>() {
    const JointArrays<Real> arrays(call, plan, workspace);
    for (const Utterance& utterance : utterances) utterance_gradient(call, arrays, utterance);
  });
}

void end_joint(const Call& call, const WorkspacePlan& plan, const Workspace& workspace,
               bool poisoned) {
  in_arithmetic_type(call, [&]<class Real>() {
    const JointArrays<Real> arrays(call, plan, workspace);
    const std::int64_t size = arrays.columns * arrays.hidden;
    if (poisoned) {
      std::fill_n(arrays.weight_gradient, size, std::numeric_limits<Real>::quiet_NaN());
      std::fill_n(arrays.bias_gradient, arrays.columns, std::numeric_limits<Real>::quiet_NaN());
    }
    const TensorRef& weight = call.result.weight_gradient;
    for (std::int64_t k = 0; weight.defined() && k < arrays.columns; ++k) {
      round_row(weight, {k}, arrays.weight_gradient + k * arrays.hidden);
    }
    if (call.result.bias_gradient.defined()) {
      round_row(call.result.bias_gradient, {}, arrays.bias_gradient);
    }
  });
}

}  // namespace transducer::cpu
