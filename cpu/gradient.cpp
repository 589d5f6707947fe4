// SPDX-License-Identifier: Apache-2.0
#include "cpu/gradient.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/columns.hpp"
#include "cpu/rows.hpp"

namespace transducer::cpu {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// softmax(x) = e^(x - high) * factor. Logits of magnitude 1e4 and their log-sum have few digits left after
/// the point in float32: high is the log-sum as it rounds, and the factor makes up for the rounding.
template <class Real>
struct Softmax {
  explicit Softmax(double log_sum)
      : high(static_cast<Real>(log_sum)), factor(std::exp(static_cast<double>(high) - log_sum)) {}
  Real high;
  double factor;
};

/// Adds a group's share of a row: one coefficient times its softmax.
template <class Real>
void add_group(const Call& call, const RowGradient& row, int g, std::int64_t label, const Real* x,
               std::int64_t first, std::int64_t count, Real* gradient) {
  const Group& group = call.plan.groups[g];
  if (group.normaliser == Normaliser::bernoulli) {
    const std::int64_t k = group.begin.offset - first;
    if (k < 0 || k >= count) return;
    const double sigmoid = 1.0 / (1.0 + std::exp(-static_cast<double>(x[k])));
    gradient[k] += static_cast<Real>(row.coefficient[g] * sigmoid);
    return;
  }
  const Softmax<Real> softmax(row.log_sum[g]);
  const Real scale = static_cast<Real>(row.coefficient[g] * softmax.factor);
  for_each_run(group, label, first, count, [&](std::int64_t begin, std::int64_t end) {
    row_kernels<Real>(call.kernels)
        .add_softmax(x + (begin - first), end - begin, softmax.high, scale,
                     gradient + (begin - first));
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

template <class Real>
void dense_row(const Call& call, const Utterance& utterance, std::int64_t t, std::int64_t u,
               Real* buffer) {
  const TensorRef& logits = std::get<DenseSource>(call.request.source).logits;
  const TensorRef& output = call.result.logits_gradient;
  const std::int64_t columns = call.valid.shape.columns;
  const std::int64_t b = utterance.batch_index;
  const RowKernels<Real>& kernels = row_kernels<Real>(call.kernels);
  Real* row = buffer + columns;
  Real* in_place = rows_in_place<Real>(output)
                       ? static_cast<Real*>(output.data) + output.offset({b, t, u})
                       : nullptr;
  RowGradient flow;
  if (t < utterance.frames && u <= utterance.labels) row_gradient(call, utterance, t, u, flow);
  if (flow.empty) {
    if (in_place != nullptr) return kernels.stream_zero(columns, in_place);
    std::fill_n(row, columns, Real(0));
  } else if (flow.poisoned) {
    std::fill_n(row, columns, static_cast<Real>(kNaN));
  } else {
    fill_row(call, utterance, flow, u, row_or_copy(logits, {b, t, u}, buffer), 0, columns, row);
  }
  if (in_place != nullptr) {
    kernels.stream(row, columns, in_place);
  } else {
    round_row(output, {b, t, u}, row);
  }
}

}  // namespace

void row_gradient(const Call& call, const Utterance& utterance, std::int64_t t, std::int64_t u,
                  RowGradient& row) {
  row.empty = !utterance.poisoned;
  row.poisoned = utterance.poisoned;
  if (utterance.poisoned || !utterance.feasible) return;
  double occupancy = 0.0;
  for (int a = 0; a < call.plan.num_arcs; ++a) occupancy += utterance.weight_row(a, t)[u];
  if (occupancy <= 0.0 || occupancy < utterance.skip_threshold) return;
  std::fill_n(row.coefficient, call.plan.num_groups, 0.0);
  std::fill_n(row.tap, call.plan.num_taps, 0.0);
  for (int a = 0; a < call.plan.num_arcs; ++a) {
    const double gamma = utterance.weight_row(a, t)[u];
    if (gamma == 0.0) continue;  // an arc on no path may read anything
    const PlannedArc& arc = call.plan.arcs[a];
    for (int i = 0; i < arc.num_columns; ++i) {
      const PlannedColumn& column = arc.columns[i];
      const double amount = -gamma * column.grad_scale;
      (column.tap >= 0 ? row.tap[column.tap] : row.coefficient[column.log_sum]) += amount;
      const int read = column.subtract | column.add;
      for (int g = 0; read >> g != 0; ++g) {
        if ((column.subtract >> g & 1) != 0) row.coefficient[g] -= amount;
        if ((column.add >> g & 1) != 0) row.coefficient[g] += amount;
      }
    }
  }
  for (int g = 0; g < call.plan.num_groups; ++g) {
    row.log_sum[g] = utterance.log_sum_row(g, t)[u];
    row.empty = row.empty && row.coefficient[g] == 0.0;
  }
  for (int i = 0; i < call.plan.num_taps; ++i) row.empty = row.empty && row.tap[i] == 0.0;
}

template <class Real>
void fill_row(const Call& call, const Utterance& utterance, const RowGradient& row, std::int64_t u,
              const Real* x, std::int64_t first, std::int64_t count, Real* gradient) {
  const std::int64_t label = utterance.label(u);
  int stored = -1;
  for (int g = 0; g < call.plan.num_groups && stored < 0; ++g) {
    if (row.coefficient[g] != 0.0 && covers_row(call, g, label)) stored = g;
  }
  if (stored >= 0) {
    const Softmax<Real> softmax(row.log_sum[stored]);
    row_kernels<Real>(call.kernels)
        .store_softmax(x, count, softmax.high,
                       static_cast<Real>(row.coefficient[stored] * softmax.factor), gradient);
  } else {
    std::fill_n(gradient, count, Real(0));
  }
  for (int g = 0; g < call.plan.num_groups; ++g) {
    if (g == stored || row.coefficient[g] == 0.0) continue;
    add_group(call, row, g, label, x, first, count, gradient);
  }
  for (int i = 0; i < call.plan.num_taps; ++i) {
    if (row.tap[i] == 0.0) continue;
    const std::int64_t k = call.plan.tap_column(i, label) - first;
    if (k >= 0 && k < count) gradient[k] += static_cast<Real>(row.tap[i]);
  }
  clamp_and_scale(call, utterance.scale, first, count, gradient);
}

template void fill_row<float>(const Call&, const Utterance&, const RowGradient&, std::int64_t,
                              const float*, std::int64_t, std::int64_t, float*);
template void fill_row<double>(const Call&, const Utterance&, const RowGradient&, std::int64_t,
                               const double*, std::int64_t, std::int64_t, double*);

void dense_gradient(const Call& call, std::span<Utterance> utterances, double* row_buffers) {
  const LossShape& shape = call.valid.shape;
  const bool full = std::get<DenseSource>(call.request.source).logits.dtype == DType::float64;
  const auto tasks = static_cast<std::int64_t>(utterances.size()) * shape.frames;
  call.team.for_each(tasks, [&](std::int64_t task, int thread) {
    const Utterance& utterance = utterances[static_cast<std::size_t>(task / shape.frames)];
    double* buffer = row_buffers + thread * 2 * shape.columns;
    for (std::int64_t u = 0; u <= shape.labels; ++u) {
      if (full) {
        dense_row<double>(call, utterance, task % shape.frames, u, buffer);
      } else {
        dense_row<float>(call, utterance, task % shape.frames, u, reinterpret_cast<float*>(buffer));
      }
    }
  });
}

}  // namespace transducer::cpu
