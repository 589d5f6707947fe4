// SPDX-License-Identifier: Apache-2.0
#include "cpu/scores.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/columns.hpp"
#include "cpu/existence.hpp"
#include "cpu/frames.hpp"
#include "cpu/rows.hpp"

namespace transducer::cpu {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_poison(double value) { return !(value < kInfinity); }  // NaN or +inf

/// One summand of an arc's weight, over the nodes of a block.
struct Term {
  const double* values;
  double sign;
  bool is_normaliser;
};

/// The summands that the logits decide; returns their number.
int collect_terms(const PlannedArc& arc, const NodeBlock& block, std::int64_t node,
                  const double* const (&log_sums)[kMaxGroups], Term* terms) {
  int count = 0;
  for (int i = 0; i < arc.num_columns; ++i) {
    const PlannedColumn& column = arc.columns[i];
    terms[count++] = {column.tap >= 0 ? block.tap[column.tap] + node : log_sums[column.log_sum],
                      1.0, false};
    for (int g = 0; (column.subtract | column.add) >> g != 0; ++g) {
      if ((column.subtract >> g & 1) != 0) {
        terms[count++] = {log_sums[g], -1.0, true};
      } else if ((column.add >> g & 1) != 0) {
        terms[count++] = {log_sums[g], 1.0, true};
      }
    }
  }
  return count;
}

/// base + the terms of node i; NaN if one is NaN or +inf, -inf if a normaliser is.
double sum_terms(double base, const Term* terms, int count, std::int64_t i) {
  double weight = base;
  bool poisoned = false;
  bool absent = false;
  for (int n = 0; n < count; ++n) {
    const double value = terms[n].values[i];
    poisoned = poisoned || is_poison(value);
    absent = absent || (terms[n].is_normaliser && value == -kInfinity);
    weight += terms[n].sign * value;
  }
  return poisoned ? kNaN : absent ? -kInfinity : weight;
}

/// Joins a further part of a row to what is there.
void merge(double part_max, double part_sum, double& max, double& sum) {
  if (sum == 0.0) {
    max = part_max;
    sum = part_sum;
    return;
  }
  const double high = std::max(max, part_max);
  if (high == -kInfinity) {
    sum += part_sum;  // 0, or NaN
    return;
  }
  sum = sum * std::exp(max - high) + part_sum * std::exp(part_max - high);
  max = high;
}

/// Takes the runs of a group's columns, the same in every row.
template <class Real>
void observe_group(const Call& call, int g, std::int64_t label, const LogitRows<Real>& rows,
                   NodeBlock& block) {
  for_each_run(call.plan.groups[g], label, rows.first, rows.count,
               [&](std::int64_t begin, std::int64_t end) {
                 double max[kBlockNodes];
                 double sum[kBlockNodes];
                 row_kernels<Real>(call.kernels)
                     .log_sum(rows.x + (begin - rows.first), rows.stride, rows.rows, end - begin,
                              max, sum);
                 for (std::int64_t r = 0; r < rows.rows; ++r) {
                   merge(max[r], sum[r], block.max[g][rows.node + r], block.sum[g][rows.node + r]);
                 }
               });
}

/// `rows` from row r on, `count` of them.
template <class Real>
LogitRows<Real> part_of(LogitRows<Real> rows, std::int64_t r, std::int64_t count) {
  rows.x += r * rows.stride;
  rows.node += r;
  rows.u += r;
  rows.rows = count;
  return rows;
}

template <class Real>
void observe_taps(const Call& call, const Utterance& utterance, const LogitRows<Real>& rows,
                  NodeBlock& block) {
  for (int i = 0; i < call.plan.num_taps; ++i) {
    double* tap = block.tap[i] + rows.node;
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      const std::int64_t label = utterance.label(rows.u + r);
      const std::int64_t k = call.plan.tap_column(i, label) - rows.first;
      const bool reads = i < call.plan.num_fixed || label >= 0;
      if (reads && k >= 0 && k < rows.count) {
        tap[r] = static_cast<double>(rows.x[r * rows.stride + k]);
      }
    }
  }
}

/// A block of nodes of frame t: rows where they lie, or one after the other through `buffer`.
template <class Real>
void dense_block(const Call& call, const TensorRef& logits, std::int64_t t, NodeRange nodes,
                 Real* buffer, const Utterance& utterance, NodeBlock& block) {
  const NodeRange allowed = allowed_nodes(call, utterance, t);
  const std::int64_t begin = std::max(allowed.begin, nodes.begin);
  const std::int64_t end = std::min(allowed.end, nodes.end);
  const std::int64_t step = rows_in_place<Real>(logits) ? kBlockNodes : 1;
  for (std::int64_t u = begin; u < end; u += step) {
    const LogitRows<Real> rows{.x = row_or_copy(logits, {utterance.batch_index, t, u}, buffer),
                               .stride = logits.strides[2],
                               .rows = std::min(step, end - u),
                               .first = 0,
                               .count = call.valid.shape.columns,
                               .node = u - nodes.begin,

                               .u = u};
    observe_rows(call, utterance, rows, block);
  }
}

}  // namespace

void clear_nodes(const Call& call, std::int64_t count, NodeBlock& block) {
  for (int i = 0; i < call.plan.num_taps; ++i) std::fill_n(block.tap[i], count, -kInfinity);
  for (int g = 0; g < call.plan.num_groups; ++g) {
    std::fill_n(block.max[g], count, -kInfinity);
    std::fill_n(block.sum[g], count, 0.0);
  }
}

template <class Real>
void observe_rows(const Call& call, const Utterance& utterance, const LogitRows<Real>& rows,
                  NodeBlock& block) {
  for (int g = 0; g < call.plan.num_groups; ++g) {
    if ((call.plan.read_groups >> g & 1) == 0) continue;
    if (!call.plan.groups[g].exclude_label) {
      observe_group(call, g, -1, rows, block);
      continue;
    }
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      observe_group(call, g, utterance.label(rows.u + r), part_of(rows, r, 1), block);
    }
  }
  observe_taps(call, utterance, rows, block);
}

template void observe_rows<float>(const Call&, const Utterance&, const LogitRows<float>&,
                                  NodeBlock&);
template void observe_rows<double>(const Call&, const Utterance&, const LogitRows<double>&,
                                   NodeBlock&);

void finish_nodes(const Call& call, const NodeBlock& block, std::int64_t node, std::int64_t count,
                  std::int64_t t, std::int64_t u, Utterance& utterance,
                  std::atomic<bool>& saw_poison) {
  const double* log_sums[kMaxGroups] = {};
  for (int g = 0; g < call.plan.num_groups; ++g) {
    double* row = utterance.log_sum_row(g, t) + u;
    log_sums[g] = row;
    if ((call.plan.read_groups >> g & 1) == 0) {
      std::fill_n(row, count, 0.0);
      continue;
    }
    call.kernels.lattice.join(block.max[g] + node, block.sum[g] + node, count, row);
    if (call.plan.groups[g].normaliser != Normaliser::bernoulli) continue;
    for (std::int64_t i = 0; i < count; ++i) {
      // softplus(x) = log(1 + e^x), stable on both sides
      row[i] = row[i] > 0.0 ? row[i] + std::log1p(std::exp(-row[i])) : std::log1p(std::exp(row[i]));
    }
  }
  const double to_middle =
      (static_cast<double>(utterance.frames) - 1.0) / 2.0 - static_cast<double>(t);
  bool poisoned = false;
  for (int a = 0; a < call.plan.num_arcs; ++a) {
    const PlannedArc& arc = call.plan.arcs[a];
    double* weights = utterance.weight_row(a, t) + u;
    std::fill_n(weights, count, -kInfinity);
    Term terms[kMaxColumnsPerArc * (1 + kMaxGroups)];
    const int num_terms = collect_terms(arc, block, node, log_sums, terms);
    const double base = arc.constant + arc.frame_bonus * to_middle;
    const NodeRange nodes = arc_nodes(call, utterance, a, t);
    const std::int64_t end = std::min(nodes.end - u, count);
    for (std::int64_t i = std::max<std::int64_t>(nodes.begin - u, 0); i < end; ++i) {
      if ((utterance.label_arcs[static_cast<std::size_t>(u + i)] >> a & 1u) == 0) continue;
      double weight = sum_terms(base, terms, num_terms, i);
      if (call.valid.arc_scores.defined()) {
        const double score = read_real(call.valid.arc_scores, {utterance.batch_index, t, u + i, a});
        if (score == -kInfinity) continue;  // masked, whatever the logits hold
        weight = is_poison(score) ? kNaN : weight + score;
      }
      weights[i] = weight;
      poisoned = poisoned || is_poison(weight);
    }
  }
  if (poisoned) saw_poison.store(true, std::memory_order_relaxed);
}

void dense_scores(const Call& call, std::span<Utterance> utterances, double* row_buffers) {
  const TensorRef& logits = std::get<DenseSource>(call.request.source).logits;
  for_each_frame(
      call, utterances,
      [&](Utterance& utterance, std::int64_t t, int thread, std::atomic<bool>& saw_poison) {
        double* buffer = row_buffers + thread * row_buffer_size(call.valid.shape.columns);
        NodeBlock block;
        for (std::int64_t u = 0; u < utterance.rows(); u += kBlockNodes) {
          const NodeRange nodes{u, std::min(u + kBlockNodes, utterance.rows())};
          clear_nodes(call, nodes.end - u, block);
          if (logits.dtype == DType::float64) {
            dense_block<double>(call, logits, t, nodes, buffer, utterance, block);
          } else {
            dense_block<float>(call, logits, t, nodes, reinterpret_cast<float*>(buffer), utterance,
                               block);
          }
          finish_nodes(call, block, 0, nodes.end - u, t, u, utterance, saw_poison);
        }
      });
}

void copy_arc_weights(const Call& call, std::span<Utterance> utterances) {
  const TensorRef& weights = std::get<ArcWeightSource>(call.request.source).arc_weights;
  for_each_frame(call, utterances,
                 [&](Utterance& utterance, std::int64_t t, int, std::atomic<bool>& saw_poison) {
                   for (int a = 0; a < call.plan.num_arcs; ++a) {
                     for (std::int64_t u = 0; u <= utterance.labels; ++u) {
                       double weight = -kInfinity;
                       if (arc_fits(call, utterance, a, t, u)) {
                         weight = read_real(weights, {utterance.batch_index, t, u, a});
                         if (is_poison(weight)) saw_poison.store(true, std::memory_order_relaxed);
                       }
                       utterance.weight_row(a, t)[u] = is_poison(weight) ? kNaN : weight;
                     }
                   }
                 });
}

}  // namespace transducer::cpu
