// SPDX-License-Identifier: Apache-2.0
#include "reference/gradient.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/core/cancel.hpp"
#include "reference/core/log_math.hpp"
#include "reference/scores.hpp"

namespace transducer::reference {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Adds amount * dZ/dx, with Z the group's log-sum: its softmax, or the sigmoid of a Bernoulli
/// column.
void add_log_sum_gradient(const Group& group, double amount, std::span<const double> logits,
                          double log_sum, std::int64_t label, std::span<double> gradient) {
  if (group.normaliser == Normaliser::bernoulli) {
    const auto k = static_cast<std::size_t>(group.begin.offset);
    gradient[k] += amount * sigmoid(logits[k]);
    return;
  }
  for (std::int64_t k = group.begin.offset; k < group.end.offset; ++k) {
    if (!group_contains(group, k, label)) continue;
    const auto i = static_cast<std::size_t>(k);
    gradient[i] += amount * std::exp(logits[i] - log_sum);
  }
}

bool column_is_clamped(const VariantTable& table, std::int64_t k) {
  for (int g = 0; g < table.num_groups; ++g) {
    const Group& group = table.groups[g];
    if (!group.clamp && k >= group.begin.offset && k < group.end.offset) return false;
  }
  return true;
}

void clamp_and_scale(const VariantTable& table, const Backward& backward,
                     std::span<double> gradient) {
  for (std::size_t k = 0; k < gradient.size(); ++k) {
    if (gradient[k] == 0.0) continue;  // exactly 0 whatever the scale
    if (backward.clamp > 0.0 && column_is_clamped(table, static_cast<std::int64_t>(k))) {
      gradient[k] = std::clamp(gradient[k], -backward.clamp, backward.clamp);
    }
    gradient[k] *= backward.scale;
  }
}

/// d cost / d z at one node, in sums.logits_gradient. Returns false if it is 0 everywhere.
bool node_gradient(const LossRequest& request, const ValidRequest& valid, const Backward& backward,
                   NodeReader& reader, const Utterance& utterance, std::int64_t t, std::int64_t u,
                   std::span<double> gradient) {
  if (backward.poisoned) {
    std::fill(gradient.begin(), gradient.end(), kNaN);
    return true;
  }
  std::fill(gradient.begin(), gradient.end(), 0.0);
  const std::span<const double> flow(&backward.flow(t, u, 0),
                                     static_cast<std::size_t>(valid.table.num_arcs));
  if (std::all_of(flow.begin(), flow.end(), [](double q) { return q == 0.0; })) return false;
  reader.read(utterance, t, u);
  const std::span<const double> log_sums(
      utterance.group_log_sums.data + (t * (utterance.labels + 1) + u) * valid.table.num_groups,
      static_cast<std::size_t>(valid.table.num_groups));
  add_node_gradient(valid.table, flow, reader.logits, log_sums, utterance.label(u),
                    request.from_log_probs, gradient);
  clamp_and_scale(valid.table, backward, gradient);
  return true;
}

void write_dense(const LossRequest& request, const ValidRequest& valid, const LossResult& result,
                 const Options& options, const Backward& backward, NodeReader& reader,
                 const Utterance& utterance, std::span<double> gradient) {
  for (std::int64_t t = 0; t < valid.shape.frames; ++t) {
    poll_cancelled(options, request.caller);
    for (std::int64_t u = 0; u <= valid.shape.labels; ++u) {
      if (t < utterance.frames && u <= utterance.labels) {
        node_gradient(request, valid, backward, reader, utterance, t, u, gradient);
      } else {
        std::fill(gradient.begin(), gradient.end(), 0.0);
      }
      write_row(result.logits_gradient, {utterance.batch_index, t, u}, gradient);
    }
  }
}

/// Writes rows 0 to `valid_rows` - 1 of `sum` [rows, H], then zeros up to the padded length.
void write_joint_rows(const TensorRef& tensor, std::int64_t batch_index, std::int64_t valid_rows,
                      std::span<double> sum) {
  if (!tensor.defined()) return;
  const auto width = static_cast<std::size_t>(tensor.extent(2));
  for (std::int64_t r = 0; r < tensor.extent(1); ++r) {
    const std::span<double> row = sum.subspan(static_cast<std::size_t>(r) * width, width);
    if (r >= valid_rows) std::fill(row.begin(), row.end(), 0.0);
    write_row(tensor, {batch_index, r}, row);
  }
}

void write_joint(const LossRequest& request, const ValidRequest& valid, const LossResult& result,
                 const Options& options, const Backward& backward, NodeReader& reader,
                 const Utterance& utterance, GradientSums& sums) {
  const double start = backward.poisoned ? kNaN : 0.0;
  std::fill(sums.joint.encoder.begin(), sums.joint.encoder.end(), start);
  std::fill(sums.joint.predictor.begin(), sums.joint.predictor.end(), start);
  sums.shared_poisoned = sums.shared_poisoned || (backward.poisoned && utterance.frames > 0);
  for (std::int64_t t = 0; t < utterance.frames && !backward.poisoned; ++t) {
    poll_cancelled(options, request.caller);
    for (std::int64_t u = 0; u <= utterance.labels; ++u) {
      if (node_gradient(request, valid, backward, reader, utterance, t, u, sums.logits_gradient)) {
        add_joint_gradient(reader, utterance, t, u, sums.logits_gradient, sums.joint);
      }
    }
  }
  // With no frame there is no node, so no row of P is valid either.
  const std::int64_t valid_predictor_rows = utterance.frames > 0 ? utterance.labels + 1 : 0;
  write_joint_rows(result.encoder_gradient, utterance.batch_index, utterance.frames,
                   sums.joint.encoder);
  write_joint_rows(result.predictor_gradient, utterance.batch_index, valid_predictor_rows,
                   sums.joint.predictor);
}

bool wants_joint(const LossResult& result) {
  return result.encoder_gradient.defined() || result.predictor_gradient.defined() ||
         result.weight_gradient.defined() || result.bias_gradient.defined();
}

/// Arc weights and arc scores add into w with factor 1: their gradient is the flow itself, unscaled
/// by s and unclamped.
double arc_gradient(const Backward& backward, std::int64_t t, std::int64_t u, int arc) {
  if (backward.poisoned) return kNaN;
  const double flow = backward.flow(t, u, arc);
  return flow == 0.0 ? 0.0 : flow * backward.scale;
}

void write_arc_weights(const ValidRequest& valid, const TensorRef& tensor, const Backward& backward,
                       const Utterance& utterance) {
  for (std::int64_t t = 0; t < valid.shape.frames; ++t) {
    for (std::int64_t u = 0; u <= valid.shape.labels; ++u) {
      const bool is_valid = t < utterance.frames && u <= utterance.labels;
      for (int a = 0; a < valid.shape.arcs; ++a) {
        write_real(tensor, {utterance.batch_index, t, u, a},
                   is_valid ? arc_gradient(backward, t, u, a) : 0.0);
      }
    }
  }
}

/// Row-major index into arc_scores of the element that broadcasts to (b, t, u, a).
std::size_t arc_score_index(const TensorRef& broadcast, std::int64_t b, std::int64_t t,
                            std::int64_t u, std::int64_t a) {
  const std::int64_t index[4] = {b, t, u, a};
  std::int64_t flat = 0;
  for (int axis = 0; axis < 4; ++axis) {
    if (broadcast.strides[axis] == 0) continue;  // extent 1 before broadcasting
    flat = flat * broadcast.extents[axis] + index[axis];
  }
  return static_cast<std::size_t>(flat);
}

void add_arc_scores(const ValidRequest& valid, const Backward& backward, const Utterance& utterance,
                    std::span<double> sum) {
  for (std::int64_t t = 0; t < utterance.frames; ++t) {
    for (std::int64_t u = 0; u <= utterance.labels; ++u) {
      for (int a = 0; a < valid.shape.arcs; ++a) {
        sum[arc_score_index(valid.arc_scores_gradient, utterance.batch_index, t, u, a)] +=
            arc_gradient(backward, t, u, a);
      }
    }
  }
}

/// Copies row-major sums into a tensor of any rank up to 4, rounding once.
void write_flat(const TensorRef& tensor, std::span<const double> values) {
  TensorRef padded;
  padded = tensor;
  padded.rank = kMaxRank;
  for (int axis = 0; axis < kMaxRank; ++axis) {
    const int own = axis - (kMaxRank - tensor.rank);
    padded.extents[axis] = own < 0 ? 1 : tensor.extents[own];
    padded.strides[axis] = own < 0 ? 0 : tensor.strides[own];
  }
  std::size_t next = 0;
  for (std::int64_t i = 0; i < padded.extents[0]; ++i) {
    for (std::int64_t j = 0; j < padded.extents[1]; ++j) {
      for (std::int64_t k = 0; k < padded.extents[2]; ++k) {
        const auto width = static_cast<std::size_t>(padded.extents[3]);
        write_row(padded, {i, j, k}, values.subspan(next, width));
        next += width;
      }
    }
  }
}

}  // namespace

void add_node_gradient(const VariantTable& table, std::span<const double> flow,
                       std::span<const double> logits, std::span<const double> log_sums,
                       std::int64_t label, bool from_log_probs, std::span<double> logits_gradient) {
  double normaliser_flow[kMaxGroups] = {};  // into Z_g
  for (int a = 0; a < table.num_arcs; ++a) {
    const double q = flow[static_cast<std::size_t>(a)];
    if (q == 0.0) continue;  // an arc on no path may read anything, NaN included
    for (int i = 0; i < table.arcs[a].num_columns; ++i) {
      const Column& column = table.arcs[a].columns[i];
      const double amount = q * column.grad_scale;
      if (column.kind == ColumnKind::log_sum) {
        add_log_sum_gradient(table.groups[column.group], amount, logits,
                             log_sums[static_cast<std::size_t>(column.group)], label,
                             logits_gradient);
      } else {
        const std::int64_t k =
            column.kind == ColumnKind::fixed ? column.position.offset : label + column.label_offset;
        logits_gradient[static_cast<std::size_t>(k)] += amount;
      }
      for (int g = 0; g < table.num_groups; ++g) {
        if ((column.subtract & group_bit(g)) != 0) normaliser_flow[g] -= amount;
        if ((column.add & group_bit(g)) != 0) normaliser_flow[g] += amount;
      }
    }
  }
  for (int g = 0; g < table.num_groups; ++g) {
    const bool is_constant = from_log_probs || table.groups[g].normaliser == Normaliser::none;
    if (normaliser_flow[g] == 0.0 || is_constant) continue;
    add_log_sum_gradient(table.groups[g], normaliser_flow[g], logits,
                         log_sums[static_cast<std::size_t>(g)], label, logits_gradient);
  }
}

void gradient(const LossRequest& request, const ValidRequest& valid, const LossResult& result,
              const Options& options, const Backward& backward, NodeReader& reader,
              const Utterance& utterance, GradientSums& sums) {
  if (result.logits_gradient.defined()) {
    write_dense(request, valid, result, options, backward, reader, utterance, sums.logits_gradient);
  }
  if (wants_joint(result)) {
    write_joint(request, valid, result, options, backward, reader, utterance, sums);
  }
  if (result.arc_weights_gradient.defined()) {
    write_arc_weights(valid, result.arc_weights_gradient, backward, utterance);
  }
  if (result.arc_scores_gradient.defined()) {
    add_arc_scores(valid, backward, utterance, sums.arc_scores);
  }
}

void write_shared_gradients(const LossResult& result, const GradientSums& sums) {
  if (sums.shared_poisoned) {
    if (result.weight_gradient.defined()) fill_real(result.weight_gradient, kNaN);
    if (result.bias_gradient.defined()) fill_real(result.bias_gradient, kNaN);
  } else {
    if (result.weight_gradient.defined()) write_flat(result.weight_gradient, sums.joint.weight);
    if (result.bias_gradient.defined()) write_flat(result.bias_gradient, sums.joint.bias);
  }
  if (result.arc_scores_gradient.defined()) write_flat(result.arc_scores_gradient, sums.arc_scores);
}

}  // namespace transducer::reference
