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

/// The part of an arc's weight that the logits decide; NaN if it reads NaN or +inf.
double weight_from_logits(const PlannedArc& arc, int num_groups, const double* taps,
                          const double* log_sums) {
  double weight = arc.constant;
  bool poisoned = false;
  bool absent = false;
  for (int i = 0; i < arc.num_columns; ++i) {
    const PlannedColumn& column = arc.columns[i];
    const double value = column.tap >= 0 ? taps[column.tap] : log_sums[column.log_sum];
    poisoned = poisoned || is_poison(value);
    weight += value;
    const int read = column.subtract | column.add;
    for (int g = 0; read >> g != 0 && g < num_groups; ++g) {
      if ((read >> g & 1) == 0) continue;
      poisoned = poisoned || is_poison(log_sums[g]);
      absent = absent || log_sums[g] == -kInfinity;
      weight += (column.subtract >> g & 1) != 0 ? -log_sums[g] : log_sums[g];
    }
  }
  if (poisoned) return kNaN;
  return absent ? -kInfinity : weight;
}

template <class Real>
void dense_frame(const Call& call, const TensorRef& logits, std::int64_t t, Real* buffer,
                 Utterance& utterance, std::atomic<bool>& saw_poison) {
  double taps[kMaxTaps];
  for (std::int64_t u = 0; u <= utterance.labels; ++u) {
    const std::int64_t label = utterance.label(u);
    const Real* row = row_or_copy(logits, {utterance.batch_index, t, u}, buffer);
    GroupSums sums = empty_sums();
    if (is_allowed(call, utterance, t, u)) {
      observe_columns(call, label, row, 0, call.valid.shape.columns, sums);
    }
    for (int i = 0; i < call.plan.num_taps; ++i) {
      const std::int64_t k = call.plan.tap_column(i, label);
      const bool reads = i < call.plan.num_fixed || label >= 0;
      taps[i] = reads ? static_cast<double>(row[k]) : -kInfinity;
    }
    finish_node(call, taps, sums, t, u, utterance, saw_poison);
  }
}

}  // namespace

GroupSums empty_sums() {
  GroupSums sums;
  std::fill_n(sums.max, kMaxGroups, -kInfinity);
  std::fill_n(sums.sum, kMaxGroups, 0.0);
  return sums;
}

template <class Real>
void observe_columns(const Call& call, std::int64_t label, const Real* x, std::int64_t first,
                     std::int64_t count, GroupSums& sums) {
  const RowKernels<Real>& kernels = row_kernels<Real>(call.kernels);
  for (int g = 0; g < call.plan.num_groups; ++g) {
    if ((call.plan.read_groups >> g & 1) == 0) continue;
    for_each_run(
        call.plan.groups[g], label, first, count, [&](std::int64_t begin, std::int64_t end) {
          double max = 0.0;
          double sum = 0.0;
          kernels.log_sum(x + (begin - first), end - begin, &max, &sum);
          const double high = std::max(sums.max[g], max);
          if (high == -kInfinity) {
            sums.sum[g] += sum;  // 0, or NaN
            return;
          }
          sums.sum[g] = sums.sum[g] * std::exp(sums.max[g] - high) + sum * std::exp(max - high);
          sums.max[g] = high;
        });
  }
}

template void observe_columns<float>(const Call&, std::int64_t, const float*, std::int64_t,
                                     std::int64_t, GroupSums&);
template void observe_columns<double>(const Call&, std::int64_t, const double*, std::int64_t,
                                      std::int64_t, GroupSums&);

void finish_node(const Call& call, const double* taps, const GroupSums& sums, std::int64_t t,
                 std::int64_t u, Utterance& utterance, std::atomic<bool>& saw_poison) {
  double log_sums[kMaxGroups] = {};
  for (int g = 0; g < call.plan.num_groups; ++g) {
    if ((call.plan.read_groups >> g & 1) != 0) {
      const bool bernoulli = call.plan.groups[g].normaliser == Normaliser::bernoulli;
      const double log_sum = sums.max[g] + std::log(sums.sum[g]);
      // softplus(x) = log(1 + e^x), stable on both sides
      log_sums[g] = !bernoulli      ? log_sum
                    : log_sum > 0.0 ? log_sum + std::log1p(std::exp(-log_sum))
                                    : std::log1p(std::exp(log_sum));
    }
    utterance.log_sum_row(g, t)[u] = log_sums[g];
  }
  const double to_middle =
      (static_cast<double>(utterance.frames) - 1.0) / 2.0 - static_cast<double>(t);
  for (int a = 0; a < call.plan.num_arcs; ++a) {
    double& slot = utterance.weight_row(a, t)[u];
    slot = -kInfinity;
    if (!arc_fits(call, utterance, a, t, u)) continue;
    const PlannedArc& arc = call.plan.arcs[a];
    double weight = weight_from_logits(arc, call.plan.num_groups, taps, log_sums);
    weight += arc.frame_bonus * to_middle;
    if (call.valid.arc_scores.defined()) {
      const double score = read_real(call.valid.arc_scores, {utterance.batch_index, t, u, a});
      if (score == -kInfinity) continue;  // masked, whatever the logits hold
      weight = is_poison(score) ? kNaN : weight + score;
    }
    slot = weight;
    if (is_poison(weight)) saw_poison.store(true, std::memory_order_relaxed);
  }
}

void dense_scores(const Call& call, std::span<Utterance> utterances, double* row_buffers) {
  const TensorRef& logits = std::get<DenseSource>(call.request.source).logits;
  const std::int64_t columns = call.valid.shape.columns;
  for_each_frame(
      call, utterances,
      [&](Utterance& utterance, std::int64_t t, int thread, std::atomic<bool>& saw_poison) {
        double* buffer = row_buffers + thread * columns;
        if (logits.dtype == DType::float64) {
          dense_frame<double>(call, logits, t, buffer, utterance, saw_poison);
        } else {
          dense_frame<float>(call, logits, t, reinterpret_cast<float*>(buffer), utterance,
                             saw_poison);
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
