// SPDX-License-Identifier: Apache-2.0
#include "reference/core/validate.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "reference/core/tap_plan.hpp"

namespace transducer {
namespace {

using Extents = std::initializer_list<std::int64_t>;

/// An expected shape in numbers: "[4, 10, 6, 30]".
std::string numbers(Extents extents) {
  std::string text = "[";
  for (std::int64_t extent : extents) text += (text.size() > 1 ? ", " : "") + concat(extent);
  return text + "]";
}

class Checker {
 public:
  explicit Checker(const LossRequest& request) : caller_(request.caller) {}

  std::string_view caller() const { return caller_; }

  void rank(const TensorRef& tensor, std::string_view name, int rank, std::string_view axes) const {
    check(tensor.defined(), caller_, ": ", name, " is missing, expected an array ", axes);
    if (tensor.rank == rank) return;  // a shape is only written out for a message
    throw InvalidArgument(concat(caller_, ": ", name, " has shape ", tensor.shape_string(),
                                 ", expected ", rank, " axes ", axes));
  }

  void shape(const TensorRef& tensor, std::string_view name, Extents extents,
             std::string_view because) const {
    const bool equal = tensor.rank == static_cast<int>(extents.size()) &&
                       std::equal(extents.begin(), extents.end(),
                                  static_cast<const std::int64_t*>(tensor.extents));
    if (equal) return;
    throw InvalidArgument(concat(caller_, ": ", name, " has shape ", tensor.shape_string(),
                                 ", expected ", numbers(extents), " because ", because));
  }

  void real(const TensorRef& tensor, std::string_view name) const {
    check(is_real(tensor.dtype), caller_, ": ", name, " has dtype ", dtype_name(tensor.dtype),
          ", expected float64, float32, bfloat16 or float16");
  }

  void index(const TensorRef& tensor, std::string_view name) const {
    check(is_index(tensor.dtype), caller_, ": ", name, " has dtype ", dtype_name(tensor.dtype),
          ", expected int32 or int64");
  }

  /// An output: real, writable, of the expected shape, no two elements at one address.
  void output(const TensorRef& tensor, std::string_view name, Extents extents,
              std::string_view because) const {
    if (!tensor.defined()) return;
    shape(tensor, name, extents, because);
    real(tensor, name);
    check(!tensor.read_only, caller_, ": ", name,
          " is read-only, expected memory that can be written; pass a copy");
    check(!overlaps_itself(tensor), caller_, ": ", name,
          " has elements that share memory (a broadcast array?), expected one address per element; "
          "pass a copy");
  }

  /// The gradient of an input: an output with that input's dtype and shape.
  void gradient(const TensorRef& tensor, std::string_view name, const TensorRef& input,
                std::string_view input_name) const {
    if (!tensor.defined()) return;
    check(input.defined(), caller_, ": the gradient of ", input_name, " is asked for, expected ",
          input_name, " to be given");
    check(tensor.rank == input.rank &&
              std::equal(tensor.extents, tensor.extents + input.rank, input.extents),
          caller_, ": ", name, " has shape ", tensor.shape_string(), ", expected ",
          input.shape_string(), " because that is the shape of ", input_name);
    check(tensor.dtype == input.dtype, caller_, ": ", name, " has dtype ", dtype_name(tensor.dtype),
          ", expected ", dtype_name(input.dtype), " because a gradient has its input's dtype");
    check(!tensor.read_only, caller_, ": ", name,
          " is read-only, expected memory that can be written; pass a copy");
    check(!overlaps_itself(tensor), caller_, ": ", name,
          " has elements that share memory (a broadcast array?), expected one address per element; "
          "pass a copy");
    check(!overlaps(tensor, input) || same_memory(tensor, input), caller_, ": ", name,
          " shares part of its memory with ", input_name,
          ", expected memory of its own, or exactly the same array for an in-place gradient");
  }

 private:
  /// Lowest and one past the highest byte address an array touches.
  static std::pair<std::intptr_t, std::intptr_t> address_range(const TensorRef& tensor) {
    std::int64_t low = 0;
    std::int64_t high = 0;
    for (int axis = 0; axis < tensor.rank; ++axis) {
      const std::int64_t reach = (tensor.extents[axis] - 1) * tensor.strides[axis];
      (reach < 0 ? low : high) += reach;
    }
    const auto bytes = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
    const auto base = reinterpret_cast<std::intptr_t>(tensor.data);
    return {base + low * bytes, base + (high + 1) * bytes};
  }

  static bool overlaps(const TensorRef& a, const TensorRef& b) {
    if (a.size() == 0 || b.size() == 0) return false;
    const auto [a_low, a_high] = address_range(a);
    const auto [b_low, b_high] = address_range(b);
    return a_low < b_high && b_low < a_high;
  }

  static bool same_memory(const TensorRef& a, const TensorRef& b) {
    return a.data == b.data && a.rank == b.rank &&
           std::equal(a.strides, a.strides + a.rank, b.strides);
  }

  /// Sorted by stride, each axis must step over everything below it. Refuses a few exotic layouts
  /// that do not overlap; outputs never need them.
  static bool overlaps_itself(const TensorRef& tensor) {
    std::pair<std::int64_t, std::int64_t> axes[kMaxRank];  // stride, extent
    int count = 0;
    for (int axis = 0; axis < tensor.rank; ++axis) {
      if (tensor.extents[axis] == 0) return false;
      if (tensor.extents[axis] == 1) continue;
      // Insertion sort: GCC 14 takes std::sort on four elements for an access out of bounds.
      int place = count++;
      const std::pair inserted{std::abs(tensor.strides[axis]), tensor.extents[axis]};
      for (; place > 0 && axes[place - 1] > inserted; --place) axes[place] = axes[place - 1];
      axes[place] = inserted;
    }
    std::int64_t reach = 0;
    for (int i = 0; i < count; ++i) {
      if (axes[i].first <= reach) return true;
      reach += axes[i].first * (axes[i].second - 1);
    }
    return false;
  }

  std::string_view caller_;
};

constexpr const char* kStartSymbolHint = " Did the prediction network get its start symbol?";

void check_dense(const Checker& checker, const DenseSource& source, const LossRequest& request,
                 LossShape& shape) {
  checker.rank(source.logits, "logits", 4, "[B, T, U + 1, K]");
  checker.real(source.logits, "logits");
  checker.rank(request.targets, "targets", 2, "[B, U]");
  const TensorRef& logits = source.logits;
  const std::int64_t labels = request.targets.extent(1);
  check(logits.extent(2) == labels + 1, checker.caller(), ": logits has shape ",
        logits.shape_string(), ", expected ",
        numbers({logits.extent(0), logits.extent(1), labels + 1, logits.extent(3)}),
        " because targets has U = ", labels, " columns and the joint needs U + 1.",
        kStartSymbolHint);
  check(logits.extent(3) >= 1, checker.caller(), ": logits has shape ", logits.shape_string(),
        ", expected at least one column on the last axis");
  shape = {.batch = logits.extent(0),
           .frames = logits.extent(1),
           .labels = labels,
           .columns = logits.extent(3),
           .dtype = logits.dtype};
}

/// float64 if any input is, else the encoder's type.
DType joint_dtype(const JointSource& source) {
  for (const TensorRef* tensor :
       {&source.encoder, &source.predictor, &source.weight, &source.bias}) {
    if (tensor->defined() && tensor->dtype == DType::float64) return DType::float64;
  }
  return source.encoder.dtype;
}

void check_joint(const Checker& checker, const JointSource& source, const LossRequest& request,
                 LossShape& shape) {
  checker.rank(source.encoder, "encoder", 3, "[B, T, H]");
  checker.rank(source.predictor, "predictor", 3, "[B, U + 1, H]");
  checker.rank(source.weight, "weight", 2, "[K, H]");
  for (const auto& [tensor, name] : {std::pair{source.encoder, "encoder"},
                                     {source.predictor, "predictor"},
                                     {source.weight, "weight"}}) {
    checker.real(tensor, name);
  }
  checker.rank(request.targets, "targets", 2, "[B, U]");
  const std::int64_t batch = source.encoder.extent(0);
  const std::int64_t hidden = source.encoder.extent(2);
  const std::int64_t labels = request.targets.extent(1);
  const std::int64_t columns = source.weight.extent(0);
  check(source.predictor.extent(1) == labels + 1, checker.caller(), ": predictor has shape ",
        source.predictor.shape_string(), ", expected ", numbers({batch, labels + 1, hidden}),
        " because targets has U = ", labels, " columns and the joint needs U + 1.",
        kStartSymbolHint);
  const std::string encoder_shape = concat("encoder has shape ", source.encoder.shape_string());
  checker.shape(source.predictor, "predictor", {batch, labels + 1, hidden}, encoder_shape);
  checker.shape(source.weight, "weight", {columns, hidden}, encoder_shape);
  check(hidden >= 1, checker.caller(), ": encoder has shape ", source.encoder.shape_string(),
        ", expected at least one unit on the last axis, the joint width H");
  check(columns >= 1, checker.caller(), ": weight has shape ", source.weight.shape_string(),
        ", expected at least one row");
  if (source.bias.defined()) {
    checker.shape(source.bias, "bias", {columns}, concat("weight has K = ", columns, " rows"));
    checker.real(source.bias, "bias");
  }
  if (source.predictor_mask.defined()) {
    checker.shape(source.predictor_mask, "predictor_mask", {batch, labels + 1},
                  "it holds one factor for each row of predictor");
    if (source.predictor_mask.dtype != DType::boolean) {
      checker.real(source.predictor_mask, "predictor_mask");
    }
  }
  if (source.utterance_ids.defined()) {
    checker.shape(source.utterance_ids, "utterance_ids", {batch}, encoder_shape);
    checker.index(source.utterance_ids, "utterance_ids");
  }
  check(source.dropout >= 0.0 && source.dropout < 1.0, checker.caller(), ": dropout is ",
        source.dropout, ", expected a probability from 0 up to, not including, 1");
  shape = {.batch = batch,
           .frames = source.encoder.extent(1),
           .labels = labels,
           .columns = columns,
           .hidden = hidden,
           .dtype = joint_dtype(source)};
}

void check_arc_weights(const Checker& checker, const ArcWeightSource& source,
                       const LossRequest& request, LossShape& shape) {
  checker.rank(source.arc_weights, "arc_weights", 4, "[B, T, U + 1, A]");
  checker.real(source.arc_weights, "arc_weights");
  const TensorRef& weights = source.arc_weights;
  check(weights.extent(2) >= 1, checker.caller(), ": arc_weights has shape ",
        weights.shape_string(), ", expected at least one row on axis 2 because it has U + 1");
  check(weights.extent(3) == request.variant.num_arcs, checker.caller(), ": arc_weights has shape ",
        weights.shape_string(), ", expected ", request.variant.num_arcs,
        " entries on the last axis because variant ", request.variant.name, " has that many arcs");
  shape = {.batch = weights.extent(0),
           .frames = weights.extent(1),
           .labels = weights.extent(2) - 1,
           .columns = weights.extent(3),
           .dtype = weights.dtype};
}

bool wants_gradient(const LossResult& result) {
  const TensorRef* gradients[] = {
      &result.logits_gradient,     &result.encoder_gradient,      &result.predictor_gradient,
      &result.weight_gradient,     &result.bias_gradient,         &result.arc_weights_gradient,
      &result.arc_scores_gradient, &result.start_scores_gradient, &result.final_scores_gradient};
  return std::any_of(std::begin(gradients), std::end(gradients),
                     [](const TensorRef* tensor) { return tensor->defined(); });
}

LossShape check_source(const Checker& checker, const LossRequest& request,
                       const LossResult& result) {
  LossShape shape;
  if (const auto* dense = std::get_if<DenseSource>(&request.source)) {
    check_dense(checker, *dense, request, shape);
  } else if (const auto* joint = std::get_if<JointSource>(&request.source)) {
    check_joint(checker, *joint, request, shape);
  } else {
    check_arc_weights(checker, std::get<ArcWeightSource>(request.source), request, shape);
  }
  shape.arcs = request.variant.num_arcs;
  shape.groups = request.variant.num_groups;
  if (!std::holds_alternative<ArcWeightSource>(request.source)) {
    shape.taps = count_taps(request.variant);
  }
  shape.gradient = wants_gradient(result);
  shape.arc_scores = result.arc_scores_gradient.defined() ? result.arc_scores_gradient.size() : 0;
  return shape;
}

const char* frame_lengths_name(const LossRequest& request) {
  return std::holds_alternative<JointSource>(request.source) ? "encoder_lengths" : "logit_lengths";
}

void check_lengths(const Checker& checker, const TensorRef& lengths, std::string_view name,
                   std::int64_t limit, std::string_view because) {
  for (std::int64_t b = 0; b < lengths.extent(0); ++b) {
    const std::int64_t length = read_index(lengths, {b});
    check(length >= 0 && length <= limit, checker.caller(), ": ", name, "[", b, "] is ", length,
          ", expected a value from 0 to ", limit, " because ", because,
          length > limit ? ". Were the lengths computed before subsampling or padding?" : "");
  }
}

void check_labels(const Checker& checker, const LossRequest& request, const LossShape& shape,
                  const VariantTable& table) {
  const std::int64_t vocabulary = shape.columns - table.heads;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const std::int64_t length = read_index(request.target_lengths, {b});
    for (std::int64_t u = 0; u < length; ++u) {
      const std::int64_t label = read_index(request.targets, {b, u});
      check(label >= 0 && label < vocabulary, checker.caller(), ": targets[", b, ", ", u, "] is ",
            label, ", expected a label from 0 to ", vocabulary - 1,
            " because the vocabulary has V = ", vocabulary, " symbols",
            table.heads > 0 ? concat(" (K = ", shape.columns, " columns less ", table.heads,
                                     " of variant ", table.name, ")")
                            : std::string(),
            ". Is the padding longer than target_lengths says?");
      for (int a = 0; a < table.num_arcs; ++a) {
        for (int i = 0; i < table.arcs[a].num_columns; ++i) {
          const Column& column = table.arcs[a].columns[i];
          if (column.kind != ColumnKind::label) continue;
          const std::int64_t k = label + column.label_offset;
          check(k >= 0 && k < shape.columns, checker.caller(), ": targets[", b, ", ", u, "] is ",
                label, " and arc ", a, " of variant ", table.name, " reads column label + ",
                column.label_offset, " = ", k, ", expected a column from 0 to ", shape.columns - 1);
        }
      }
    }
  }
}

void check_extras(const Checker& checker, const LossRequest& request, ValidRequest& valid) {
  const LossShape& s = valid.shape;
  if (request.arc_scores.defined()) {
    checker.real(request.arc_scores, "arc_scores");
    check(broadcast_to(request.arc_scores, {s.batch, s.frames, s.labels + 1, s.arcs},
                       &valid.arc_scores),
          checker.caller(), ": arc_scores has shape ", request.arc_scores.shape_string(),
          ", expected one that broadcasts to [B, T, U + 1, A] = ",
          numbers({s.batch, s.frames, s.labels + 1, s.arcs}));
  }
  if (request.band.defined()) {
    checker.shape(request.band, "band", {s.batch, s.frames, 2},
                  "it holds the first and last u allowed at each frame");
    checker.index(request.band, "band");
  }
  if (request.start_scores.defined()) {
    checker.shape(request.start_scores, "start_scores", {s.batch, s.frames},
                  "it holds one score for each frame a path may start at");
    checker.real(request.start_scores, "start_scores");
  }
  if (request.final_scores.defined()) {
    checker.shape(request.final_scores, "final_scores", {s.batch, s.frames + 1},
                  "it holds one score for each of the T + 1 times a path may end at");
    checker.real(request.final_scores, "final_scores");
  }
  if (request.upstream.defined()) {
    checker.real(request.upstream, "upstream");
    if (request.reduction == Reduction::none) {
      checker.shape(request.upstream, "upstream", {s.batch}, "reduction is none");
    } else {
      checker.shape(request.upstream, "upstream", {}, "the reduced cost is a scalar");
    }
  }
  check(request.clamp >= 0.0 && std::isfinite(request.clamp), checker.caller(), ": clamp is ",
        request.clamp, ", expected 0 (off) or a positive number");
  check(!std::isnan(request.skip_mass), checker.caller(), ": skip_mass is NaN, expected a number");
}

void check_result(const Checker& checker, const LossRequest& request, const LossResult& result,
                  ValidRequest& valid) {
  const LossShape& s = valid.shape;
  checker.output(result.costs, "costs", {s.batch}, "there is one cost for each utterance");
  checker.output(result.total, "total", {}, "the reduced cost is a scalar");
  checker.output(result.skipped_mass, "skipped_mass", {s.batch}, "there is one for each utterance");
  checker.output(result.alpha, "alpha", {s.batch, s.frames + 1, s.labels + 1},
                 "it covers all nodes");
  checker.output(result.beta, "beta", {s.batch, s.frames + 1, s.labels + 1}, "it covers all nodes");
  checker.output(result.occupancy, "occupancy", {s.batch, s.frames, s.labels + 1},
                 "it covers the nodes with t < T");
  for (const auto& [tensor, name] :
       {std::pair{result.arc_weights, "arc_weights"}, {result.arc_posterior, "arc_posterior"}}) {
    checker.output(tensor, name, {s.batch, s.frames, s.labels + 1, s.arcs},
                   "it covers the arcs out of all nodes");
  }
  TensorRef none;
  const auto* dense = std::get_if<DenseSource>(&request.source);
  const auto* joint = std::get_if<JointSource>(&request.source);
  const auto* weights = std::get_if<ArcWeightSource>(&request.source);
  checker.gradient(result.logits_gradient, "the gradient of logits", dense ? dense->logits : none,
                   "logits");
  checker.gradient(result.encoder_gradient, "the gradient of encoder",
                   joint ? joint->encoder : none, "encoder");
  checker.gradient(result.predictor_gradient, "the gradient of predictor",
                   joint ? joint->predictor : none, "predictor");
  checker.gradient(result.weight_gradient, "the gradient of weight", joint ? joint->weight : none,
                   "weight");
  checker.gradient(result.bias_gradient, "the gradient of bias", joint ? joint->bias : none,
                   "bias");
  checker.gradient(result.arc_weights_gradient, "the gradient of arc_weights",
                   weights ? weights->arc_weights : none, "arc_weights");
  checker.gradient(result.arc_scores_gradient, "the gradient of arc_scores", request.arc_scores,
                   "arc_scores");
  checker.gradient(result.start_scores_gradient, "the gradient of start_scores",
                   request.start_scores, "start_scores");
  checker.gradient(result.final_scores_gradient, "the gradient of final_scores",
                   request.final_scores, "final_scores");
  if (result.arc_scores_gradient.defined()) {
    broadcast_to(result.arc_scores_gradient, {s.batch, s.frames, s.labels + 1, s.arcs},
                 &valid.arc_scores_gradient);
  }
}

}  // namespace

LossShape shape_of(const LossRequest& request, const LossResult& result) {
  return check_source(Checker(request), request, result);
}

ValidRequest validate(const LossRequest& request, const LossResult& result,
                      const Options& options) {
  const Checker checker(request);
  ValidRequest valid;
  valid.shape = check_source(checker, request, result);
  const LossShape& shape = valid.shape;
  valid.from_arc_weights = std::holds_alternative<ArcWeightSource>(request.source);
  if (valid.from_arc_weights) {
    check_table(request.variant);
    valid.table = request.variant;
  } else {
    valid.table = bind_table(request.variant, shape.columns, request.caller);
    checker.shape(request.targets, "targets", {shape.batch, shape.labels},
                  concat("the batch has B = ", shape.batch, " utterances"));
    checker.index(request.targets, "targets");
  }
  const char* frames_name = frame_lengths_name(request);
  const std::string batch_reason = concat("the batch has B = ", shape.batch, " utterances");
  checker.rank(request.frame_lengths, frames_name, 1, "[B]");
  checker.rank(request.target_lengths, "target_lengths", 1, "[B]");
  checker.shape(request.frame_lengths, frames_name, {shape.batch}, batch_reason);
  checker.shape(request.target_lengths, "target_lengths", {shape.batch}, batch_reason);
  checker.index(request.frame_lengths, frames_name);
  checker.index(request.target_lengths, "target_lengths");
  check_extras(checker, request, valid);
  check_result(checker, request, result, valid);
  check(options.threads >= 0, request.caller, ": threads is ", options.threads,
        ", expected 0 (the default) or more");
  if (options.validate) {
    check_lengths(checker, request.frame_lengths, frames_name, shape.frames,
                  concat("the batch has T = ", shape.frames, " frames"));
    check_lengths(checker, request.target_lengths, "target_lengths", shape.labels,
                  concat("targets has U = ", shape.labels, " columns"));
    if (!valid.from_arc_weights) check_labels(checker, request, shape, valid.table);
  }
  return valid;
}

}  // namespace transducer
