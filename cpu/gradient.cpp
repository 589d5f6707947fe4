// SPDX-License-Identifier: Apache-2.0
#include "cpu/gradient.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/columns.hpp"
#include "cpu/first_touch.hpp"
#include "cpu/frame_rows.hpp"
#include "cpu/rows.hpp"

namespace transducer::cpu {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// softmax(x) = e^(x - high) * factor. Logits of magnitude 1e4 and their log-sum have few digits left after
/// the point in float32: high is the log-sum as it rounds, and the factor makes up for the rounding.
template <class Real>
struct Softmax {
  explicit Softmax(double log_sum) : high(static_cast<Real>(log_sum)) {
    const double rounding = static_cast<double>(high) - log_sum;
    // e^rounding; the next term, rounding^2 / 2, is at most 5e-11 in the first form.
    factor = std::abs(rounding) < 1e-5 ? 1.0 + rounding : std::exp(rounding);
  }
  Real high;
  double factor;
};

/// Adds a group's share of a row: one coefficient times its softmax.
template <class Real>
void add_group(const Call& call, const Group& group, std::int64_t label, double log_sum,
               double coefficient, const RowPart<Real>& row, Real* gradient) {
  if (group.normaliser == Normaliser::bernoulli) {
    const std::int64_t k = group.begin.offset - row.first;
    if (k < 0 || k >= row.count) return;
    const double sigmoid = 1.0 / (1.0 + std::exp(-static_cast<double>(row.x[k])));
    gradient[k] += static_cast<Real>(coefficient * sigmoid);
    return;
  }
  const Softmax<Real> softmax(log_sum);
  const Real scale = static_cast<Real>(coefficient * softmax.factor);
  for_each_run(group, label, row.first, row.count, [&](std::int64_t begin, std::int64_t end) {
    row_kernels<Real>(call.kernels)
        .add_softmax(row.x + (begin - row.first), end - begin, softmax.high, scale,
                     gradient + (begin - row.first));
  });
}

bool column_is_clamped(const TapPlan& plan, std::int64_t k) {
  for (int g = 0; plan.unclamped_groups >> g != 0; ++g) {
    const Group& group = plan.groups[g];
    if ((plan.unclamped_groups >> g & 1) != 0 && group.begin.offset <= k && k < group.end.offset) {
      return false;
    }
  }
  return true;
}

template <class Real>
void clamp_and_scale(const Call& call, double scale, std::int64_t first, std::int64_t count,
                     Real* gradient) {
  if (call.request.clamp > 0.0) {
    const Real limit = static_cast<Real>(call.request.clamp);
    for (std::int64_t k = 0; k < count; ++k) {
      if (call.plan.unclamped_groups != 0 && !column_is_clamped(call.plan, first + k)) continue;
      gradient[k] = std::clamp(gradient[k], -limit, limit);
    }
  }
  if (scale == 1.0) return;
  const Real factor = static_cast<Real>(scale);
  for (std::int64_t k = 0; k < count; ++k)
    gradient[k] = gradient[k] == Real(0) ? Real(0) : gradient[k] * factor;
}

/// Whether one group covers every column of the row without holes, so that a row can be stored in one go.
bool covers_row(const Call& call, int g, std::int64_t label) {
  const Group& group = call.plan.groups[g];
  const auto hole = [&](std::int64_t k) { return group.begin.offset <= k && k < group.end.offset; };
  return group.normaliser != Normaliser::bernoulli && group.begin.offset == 0 &&
         group.end.offset == call.valid.shape.columns &&
         !(group.exclude_fixed && hole(group.excluded.offset)) &&
         !(group.exclude_label && hole(label));
}

/// One frame: blocks of nodes, and of those as many rows at a time as the buffer holds.
template <class Real>
void dense_frame(const Call& call, const Utterance& utterance, std::int64_t t, Real* buffer) {
  const std::int64_t columns = call.valid.shape.columns;
  const InputRows<Real> input(call, utterance.batch_index, t, buffer);
  const OutputRows<Real> output(call, utterance.batch_index, t);
  Real* out = buffer + columns;
  const std::int64_t valid = t < utterance.frames ? utterance.rows() : 0;
  const std::int64_t at_once = std::clamp(rows_out<Real>(columns), std::int64_t{1}, kBlockNodes);
  NodeFlow flow;
  for (std::int64_t u = 0; u < valid; u += kBlockNodes) {
    const std::int64_t count = std::min(kBlockNodes, valid - u);
    if (!utterance.poisoned) gather_flow(call, utterance, t, u, count, 0, flow);
    for (std::int64_t begin = 0; begin < count; begin += at_once) {
      const std::int64_t end = std::min(begin + at_once, count);
      if (utterance.poisoned) {
        std::fill_n(out, (end - begin) * columns, static_cast<Real>(kNaN));
        output.put(out, u + begin, end - begin);
        continue;
      }
      const bool* const empty = flow.empty;
      if (std::find(empty + begin, empty + end, false) == empty + end) {
        output.put_zeros(out, u + begin, end - begin);
        continue;
      }
      for (std::int64_t i = begin; i < end; ++i) {
        Real* row = out + (i - begin) * columns;
        if (empty[i]) {
          std::fill_n(row, columns, Real(0));
          continue;
        }
        const std::int64_t next = std::find(empty + i + 1, empty + count, false) - empty;
        fill_row<Real>(call, utterance, flow, {.node = i, .t = t, .u = u + i},
                       {.x = input.row(u + i),
                        .first = 0,
                        .count = columns,
                        .next = next < count ? input.ahead(u + next) : nullptr},
                       row);
      }
      output.put(out, u + begin, end - begin);
    }
  }
  output.put_zeros(out, valid, call.valid.shape.labels + 1 - valid);
}

/// Pages for the gradients of whole utterances that lie in one piece.
void provide_output(const Call& call, std::span<Utterance> utterances) {
  const TensorRef& output = call.result.logits_gradient;
  const std::int64_t* extents = output.extents;
  const std::int64_t* strides = output.strides;
  if (strides[3] != 1 || strides[2] != extents[3] || strides[1] != extents[2] * strides[2]) return;
  constexpr std::int64_t kPiece = std::int64_t{8} << 20;
  const auto item = static_cast<std::int64_t>(dtype_bytes(output.dtype));
  const std::int64_t bytes = extents[1] * strides[1] * item;
  const std::int64_t pieces = (bytes + kPiece - 1) / kPiece;
  call.team.for_each(static_cast<std::int64_t>(utterances.size()) * pieces, [&](std::int64_t task,
                                                                                int) {
    const Utterance& utterance = utterances[static_cast<std::size_t>(task / pieces)];
    const std::int64_t begin = task % pieces * kPiece;
    char* data = static_cast<char*>(output.data) + output.offset({utterance.batch_index}) * item;
    provide_pages(data + begin, static_cast<std::size_t>(std::min(kPiece, bytes - begin)));
  });
}

/// target[i] += factor * source[i].
void add_scaled(double factor, const double* source, std::int64_t count, double* target) {
  for (std::int64_t i = 0; i < count; ++i) target[i] += factor * source[i];
}

}  // namespace

void gather_flow(const Call& call, const Utterance& utterance, std::int64_t t, std::int64_t u,
                 std::int64_t count, std::int64_t node, NodeFlow& flow) {
  const auto arcs = [&](int a) { return utterance.weight_row(a, t) + u; };
  double occupancy[kBlockNodes] = {};
  for (int a = 0; a < call.plan.num_arcs; ++a) add_scaled(1.0, arcs(a), count, occupancy);
  const double threshold =
      utterance.feasible ? utterance.skip_threshold : std::numeric_limits<double>::infinity();
  double kept[kBlockNodes];  // 1 or 0
  for (std::int64_t i = 0; i < count; ++i) {
    kept[i] = utterance.keeps_all || (occupancy[i] > 0.0 && occupancy[i] >= threshold) ? 1.0 : 0.0;
  }
  double flowing[kBlockNodes] = {};  // posteriors of the arcs that read some column
  for (int i = 0; i < call.plan.num_taps; ++i) std::fill_n(flow.tap[i] + node, count, 0.0);
  for (int g = 0; g < call.plan.num_groups; ++g) {
    std::fill_n(flow.coefficient[g] + node, count, 0.0);
  }
  for (int a = 0; a < call.plan.num_arcs; ++a) {
    const PlannedArc& arc = call.plan.arcs[a];
    const double* posteriors = arcs(a);
    double gamma[kBlockNodes];
    for (std::int64_t i = 0; i < count; ++i) gamma[i] = kept[i] * posteriors[i];
    if (arc.num_columns > 0) add_scaled(1.0, gamma, count, flowing);
    for (int c = 0; c < arc.num_columns; ++c) {
      const PlannedColumn& column = arc.columns[c];
      const double scale = -column.grad_scale;
      add_scaled(
          scale, gamma, count,
          node + (column.tap >= 0 ? flow.tap[column.tap] : flow.coefficient[column.log_sum]));
      for (int g = 0; (column.subtract | column.add) >> g != 0; ++g) {
        double* coefficient = flow.coefficient[g] + node;
        if ((column.subtract >> g & 1) != 0) add_scaled(-scale, gamma, count, coefficient);
        if ((column.add >> g & 1) != 0) add_scaled(scale, gamma, count, coefficient);
      }
    }
  }
  for (std::int64_t i = 0; i < count; ++i) {
    flow.empty[node + i] = flowing[i] == 0.0 && !utterance.keeps_all;
  }
}

template <class Real>
void fill_row(const Call& call, const Utterance& utterance, const NodeFlow& flow,
              const NodePlace& place, const RowPart<Real>& row, Real* gradient) {
  const std::int64_t label = utterance.label(place.u);
  const auto coefficient = [&](int g) { return flow.coefficient[g][place.node]; };
  const auto log_sum = [&](int g) { return utterance.log_sum_row(g, place.t)[place.u]; };
  int stored = -1;
  for (int g = 0; g < call.plan.num_groups && stored < 0; ++g) {
    if (coefficient(g) != 0.0 && covers_row(call, g, label)) stored = g;
  }
  if (stored >= 0) {
    const Softmax<Real> softmax(log_sum(stored));
    row_kernels<Real>(call.kernels)
        .store_softmax(row.x, row.count, softmax.high,
                       static_cast<Real>(coefficient(stored) * softmax.factor), row.next, gradient);
  } else {
    std::fill_n(gradient, row.count, Real(0));
  }
  for (int g = 0; g < call.plan.num_groups; ++g) {
    if (g == stored || coefficient(g) == 0.0) continue;
    add_group(call, call.plan.groups[g], label, log_sum(g), coefficient(g), row, gradient);
  }
  for (int i = 0; i < call.plan.num_taps; ++i) {
    const double amount = flow.tap[i][place.node];
    const std::int64_t k = call.plan.tap_column(i, label) - row.first;
    if (amount != 0.0 && k >= 0 && k < row.count) gradient[k] += static_cast<Real>(amount);
  }
  clamp_and_scale(call, utterance.scale, row.first, row.count, gradient);
}

template void fill_row<float>(const Call&, const Utterance&, const NodeFlow&, const NodePlace&,
                              const RowPart<float>&, float*);
template void fill_row<double>(const Call&, const Utterance&, const NodeFlow&, const NodePlace&,
                               const RowPart<double>&, double*);

void dense_gradient(const Call& call, std::span<Utterance> utterances, double* row_buffers) {
  const LossShape& shape = call.valid.shape;
  const bool full = std::get<DenseSource>(call.request.source).logits.dtype == DType::float64;
  provide_output(call, utterances);
  const auto tasks = static_cast<std::int64_t>(utterances.size()) * shape.frames;
  call.team.for_each(tasks, [&](std::int64_t task, int thread) {
    const Utterance& utterance = utterances[static_cast<std::size_t>(task / shape.frames)];
    double* buffer = row_buffers + thread * row_buffer_size(shape.columns);
    if (full) {
      dense_frame<double>(call, utterance, task % shape.frames, buffer);
    } else {
      dense_frame<float>(call, utterance, task % shape.frames, reinterpret_cast<float*>(buffer));
    }
  });
}

}  // namespace transducer::cpu
