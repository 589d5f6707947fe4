// SPDX-License-Identifier: Apache-2.0
#include "reference/scores.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/core/cancel.hpp"
#include "reference/core/log_math.hpp"

namespace transducer::reference {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// NaN and +inf poison whatever reads them.
bool is_poison(double value) { return std::isnan(value) || value == kInfinity; }

bool group_is_empty(const Group& group, std::int64_t label) {
  for (std::int64_t k = group.begin.offset; k < group.end.offset; ++k) {
    if (group_contains(group, k, label)) return false;
  }
  return true;
}

/// Whether the band allows node (t, u); t = T has no row and is allowed.
bool node_is_allowed(const LossRequest& request, const Utterance& utterance, std::int64_t t,
                     std::int64_t u) {
  if (!request.band.defined() || t == utterance.frames) return true;
  const std::int64_t first = read_index(request.band, {utterance.batch_index, t, 0});
  const std::int64_t last = read_index(request.band, {utterance.batch_index, t, 1});
  return u >= std::max<std::int64_t>(first, 0) && u <= std::min(last, utterance.labels);
}

/// Whether the arc may leave (t, u), as far as lengths and band decide it.
bool arc_fits(const LossRequest& request, const Arc& arc, const Utterance& utterance,
              std::int64_t t, std::int64_t u) {
  const std::int64_t to_t = t + arc.dt;
  const std::int64_t to_u = u + arc.du;
  if (to_t > utterance.frames || to_u > utterance.labels) return false;
  if (to_t == utterance.frames && !arc.may_finish) return false;
  return node_is_allowed(request, utterance, t, u) &&
         node_is_allowed(request, utterance, to_t, to_u);
}

/// Whether every column of the arc exists where the next label is that of u.
bool columns_exist(const LossRequest& request, const VariantTable& table, const Arc& arc,
                   const Utterance& utterance, std::int64_t u) {
  for (int i = 0; i < arc.num_columns; ++i) {
    if (column_is_absent(table, arc.columns[i], utterance.label(u), request.from_log_probs)) {
      return false;
    }
  }
  return true;
}

double column_value(const Column& column, std::span<const double> logits,
                    std::span<const double> log_sums, std::int64_t label) {
  switch (column.kind) {
    case ColumnKind::fixed:
      return logits[static_cast<std::size_t>(column.position.offset)];
    case ColumnKind::label:
      return logits[static_cast<std::size_t>(label + column.label_offset)];
    case ColumnKind::log_sum:
      return log_sums[static_cast<std::size_t>(column.group)];
  }
  return kNaN;
}

/// The part of an arc's weight that the logits decide. Poison wins over -inf.
double weight_from_logits(const VariantTable& table, const Arc& arc, std::span<const double> logits,
                          std::span<const double> log_sums, std::int64_t label,
                          bool from_log_probs) {
  double weight = 0.0;
  bool absent = false;
  bool poisoned = false;
  for (int i = 0; i < arc.num_columns; ++i) {
    const Column& column = arc.columns[i];
    const double value = column_value(column, logits, log_sums, label);
    poisoned = poisoned || is_poison(value);
    weight += value;
    for (int g = 0; g < table.num_groups; ++g) {
      if (((column.subtract | column.add) & group_bit(g)) == 0) continue;
      const double log_z =
          log_normaliser(table.groups[g], log_sums[static_cast<std::size_t>(g)], from_log_probs);
      poisoned = poisoned || is_poison(log_z);
      absent = absent || log_z == kLogZero<double>;
      weight += (column.subtract & group_bit(g)) != 0 ? -log_z : log_z;
    }
  }
  if (poisoned) return kNaN;
  return absent ? kLogZero<double> : weight;
}

/// Stores the weight of an arc that exists, its arc score added; -inf there forbids the arc.
void set_weight(const ValidRequest& valid, double weight, std::int64_t t, std::int64_t u, int a,
                Utterance& utterance) {
  if (valid.arc_scores.defined()) {
    const double score = read_real(valid.arc_scores, {utterance.batch_index, t, u, a});
    if (score == kLogZero<double>) return;  // masked: as if it were not in the table
    weight = is_poison(score) ? kNaN : weight + score;
  }
  utterance.arc_weights(t, u, a) = weight;
  utterance.arc_exists(t, u) |= std::uint32_t{1} << a;
}

/// The weights of all arcs out of (t, u), from the logits and log-sums of that node.
void node_scores(const LossRequest& request, const ValidRequest& valid,
                 std::span<const double> logits, std::span<const double> log_sums, std::int64_t t,
                 std::int64_t u, Utterance& utterance) {
  const double frames_to_middle =
      (static_cast<double>(utterance.frames) - 1.0) / 2.0 - static_cast<double>(t);
  for (int a = 0; a < valid.table.num_arcs; ++a) {
    const Arc& arc = valid.table.arcs[a];
    if (!arc_fits(request, arc, utterance, t, u)) continue;
    if (!columns_exist(request, valid.table, arc, utterance, u)) continue;
    double weight = weight_from_logits(valid.table, arc, logits, log_sums, utterance.label(u),
                                       request.from_log_probs);
    weight += arc.constant.value + arc.frame_bonus * frames_to_middle;
    set_weight(valid, weight, t, u, a, utterance);
  }
}

/// Arc weights that the caller made: -inf forbids an arc.
void copy_arc_weights(const LossRequest& request, const ArcWeightSource& source,
                      const ValidRequest& valid, Utterance& utterance) {
  for (std::int64_t t = 0; t < utterance.frames; ++t) {
    for (std::int64_t u = 0; u <= utterance.labels; ++u) {
      for (int a = 0; a < valid.table.num_arcs; ++a) {
        if (!arc_fits(request, valid.table.arcs[a], utterance, t, u)) continue;
        const double weight = read_real(source.arc_weights, {utterance.batch_index, t, u, a});
        if (weight == kLogZero<double>) continue;
        set_weight(valid, is_poison(weight) ? kNaN : weight, t, u, a, utterance);
      }
    }
  }
}

}  // namespace

double group_log_sum(const Group& group, std::span<const double> logits, std::int64_t label) {
  if (group.normaliser == Normaliser::bernoulli) {
    const double x = logits[static_cast<std::size_t>(group.begin.offset)];
    return is_poison(x) ? kNaN : softplus(x);
  }
  OnlineLogSumExp<double> sum;
  for (std::int64_t k = group.begin.offset; k < group.end.offset; ++k) {
    if (!group_contains(group, k, label)) continue;
    const double x = logits[static_cast<std::size_t>(k)];
    if (is_poison(x)) return kNaN;
    sum.observe(x);
  }
  return sum.log_z();
}

double log_normaliser(const Group& group, double log_sum, bool from_log_probs) {
  return from_log_probs || group.normaliser == Normaliser::none ? 0.0 : log_sum;
}

bool column_is_absent(const VariantTable& table, const Column& column, std::int64_t label,
                      bool from_log_probs) {
  if (column.kind == ColumnKind::label && label < 0) return true;
  if (column.kind == ColumnKind::log_sum && group_is_empty(table.groups[column.group], label)) {
    return true;
  }
  const int read = column.subtract | column.add;
  bool subtracts_softmax = false;
  bool inside = false;
  for (int g = 0; g < table.num_groups; ++g) {
    const Group& group = table.groups[g];
    if ((read & group_bit(g)) == 0 || group.normaliser != Normaliser::softmax) continue;
    if (!from_log_probs && group_is_empty(group, label)) return true;
    if (column.kind == ColumnKind::label && (column.subtract & group_bit(g)) != 0) {
      subtracts_softmax = true;
      inside = inside || group_contains(group, label + column.label_offset, label);
    }
  }
  return subtracts_softmax && !inside;
}

void scores(const LossRequest& request, const ValidRequest& valid, const Options& options,
            NodeReader& reader, Utterance& utterance) {
  const VariantTable& table = valid.table;
  std::fill_n(utterance.arc_weights.data, utterance.arc_weights.size(), kLogZero<double>);
  std::fill_n(utterance.arc_exists.data, utterance.arc_exists.size(), 0u);
  if (const auto* weights = std::get_if<ArcWeightSource>(&request.source)) {
    copy_arc_weights(request, *weights, valid, utterance);
    return;
  }
  for (std::int64_t t = 0; t < utterance.frames; ++t) {
    poll_cancelled(options, request.caller);
    for (std::int64_t u = 0; u <= utterance.labels; ++u) {
      if (!node_is_allowed(request, utterance, t, u)) continue;
      reader.read(utterance, t, u);
      double log_sums[kMaxGroups] = {};
      for (int g = 0; g < table.num_groups; ++g) {
        log_sums[g] = group_log_sum(table.groups[g], reader.logits, utterance.label(u));
        utterance.group_log_sums(t, u, g) = log_sums[g];
      }
      node_scores(request, valid, reader.logits, log_sums, t, u, utterance);
    }
  }
}

}  // namespace transducer::reference
