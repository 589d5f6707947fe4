// SPDX-License-Identifier: Apache-2.0
#include "distributed/loss.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "distributed/agreement.hpp"
#include "distributed/reproducible_sum.hpp"
#include "distributed/shared_gradient.hpp"
#include "distributed/slice.hpp"
#include "reference/core/error.hpp"
#include "reference/core/validate.hpp"

namespace transducer::distributed {
namespace {

/// The whole batch, as every rank knows it after the first exchange.
struct Whole {
  double scale = 1.0;                 ///< of the reduction
  std::vector<std::int64_t> numbers;  // [N] utterances in the order of the ranks
  std::vector<std::size_t> order;     // [N] positions in `numbers`, ascending by number
  std::size_t first = 0;              ///< position of this rank's first utterance
};

template <class T>
void append(std::vector<std::byte>& bytes, std::span<const T> values) {
  const auto* data = reinterpret_cast<const std::byte*>(values.data());
  bytes.insert(bytes.end(), data, data + values.size_bytes());
}

template <class T>
std::vector<T> read_all(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

double reduction_scale(Reduction reduction, std::int64_t utterances, std::int64_t frames,
                       std::int64_t labels) {
  const auto one_over = [](std::int64_t n) {
    return 1.0 / static_cast<double>(std::max<std::int64_t>(n, 1));
  };
  switch (reduction) {
    case Reduction::mean:
      return one_over(utterances);
    case Reduction::mean_target:
      return one_over(labels);
    case Reduction::mean_frame:
      return one_over(frames);
    default:
      return 1.0;
  }
}

/// This rank's utterance numbers after its sums of frames and labels.
std::vector<std::byte> describe_part(const LossRequest& request, const LossResult& result,
                                     const Options& options, const Placement& placement) {
  Options checked = options;
  checked.validate = true;
  const LossShape shape = validate(request, result, checked).shape;
  check(placement.utterances.empty() ||
            static_cast<std::int64_t>(placement.utterances.size()) == shape.batch,
        "utterances has ", placement.utterances.size(), " numbers, expected ", shape.batch,
        " because there is one for each local utterance");
  check(!result.arc_scores_gradient.defined() ||
            (result.arc_scores_gradient.rank == 4 &&
             result.arc_scores_gradient.extents[0] == shape.batch),
        "the gradient of arc_scores has shape ", result.arc_scores_gradient.shape_string(),
        ", expected a batch axis of ", shape.batch,
        ": a gradient that utterances of several ranks share is not summed");
  std::int64_t head[3] = {shape.batch, 0, 0};
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    head[1] += read_index(request.frame_lengths, {b});
    head[2] += read_index(request.target_lengths, {b});
  }
  std::vector<std::byte> bytes;
  append(bytes, std::span<const std::int64_t>(head));
  append(bytes, placement.utterances);
  return bytes;
}

Whole describe_whole(const Gathered& parts, Reduction reduction, std::string_view caller,
                     const Communicator& communicator) {
  Whole whole;
  std::int64_t frames = 0;
  std::int64_t labels = 0;
  int numbered = 0;
  int nonempty = 0;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const std::vector<std::int64_t> part = read_all<std::int64_t>(parts.of(rank));
    frames += part[1];
    labels += part[2];
    nonempty += part[0] > 0 ? 1 : 0;
    numbered += part.size() > 3 ? 1 : 0;
    if (rank == communicator.rank()) whole.first = whole.numbers.size();
    for (std::int64_t i = 0; i < part[0]; ++i) {
      whole.numbers.push_back(part.size() > 3 ? part[static_cast<std::size_t>(3 + i)]
                                              : static_cast<std::int64_t>(whole.numbers.size()));
    }
  }
  check(numbered == 0 || numbered == nonempty, caller, ": ", numbered, " of ", nonempty,
        " ranks number their utterances, expected all or none");
  whole.order.resize(whole.numbers.size());
  for (std::size_t i = 0; i < whole.order.size(); ++i) whole.order[i] = i;
  std::sort(whole.order.begin(), whole.order.end(),
            [&](std::size_t a, std::size_t b) { return whole.numbers[a] < whole.numbers[b]; });
  for (std::size_t i = 1; i < whole.order.size(); ++i) {
    const std::int64_t number = whole.numbers[whole.order[i]];
    check(number != whole.numbers[whole.order[i - 1]], caller, ": two utterances have the number ",
          number, ", expected distinct ones; do two ranks hold the same utterance?");
  }
  whole.scale =
      reduction_scale(reduction, static_cast<std::int64_t>(whole.numbers.size()), frames, labels);
  return whole;
}

/// This rank's part as a request to the local layer: costs in float64, the whole batch's reduction as an upstream
/// gradient of each utterance, dropout ids by utterance number.
struct LocalCall {
  LocalCall(const LossRequest& whole_request, const LossResult& whole_result, const Whole& whole)
      : request(whole_request), result(whole_result) {
    const std::int64_t batch = whole_request.frame_lengths.extent(0);
    const auto size = static_cast<std::size_t>(batch);
    const TensorRef& upstream = whole_request.upstream;
    for (std::int64_t b = 0; b < batch; ++b) {
      const bool each = whole_request.reduction == Reduction::none;
      const double factor = !upstream.defined()
                                ? 1.0
                                : read_real(upstream, each ? std::initializer_list<std::int64_t>{b}
                                                           : std::initializer_list<std::int64_t>{});
      scales.push_back(whole.scale * factor);
    }
    request.reduction = Reduction::none;
    request.upstream = contiguous_ref(scales.data(), DType::float64, {batch});
    costs.resize(size);
    result.costs = contiguous_ref(costs.data(), DType::float64, {batch});
    result.total = {};
    auto* const joint = std::get_if<JointSource>(&request.source);
    if (joint == nullptr) return;
    numbers.assign(whole.numbers.begin() + static_cast<std::ptrdiff_t>(whole.first),
                   whole.numbers.begin() + static_cast<std::ptrdiff_t>(whole.first + size));
    if (!joint->utterance_ids.defined()) {
      joint->utterance_ids = contiguous_ref(numbers.data(), DType::int64, {batch});
    }
    weight = SharedGradient(joint->weight, result.weight_gradient);
    bias = SharedGradient(joint->bias, result.bias_gradient);
  }

  LossRequest request;
  LossResult result;
  std::vector<double> scales;         // [B]
  std::vector<double> costs;          // [B]
  std::vector<std::int64_t> numbers;  // [B]
  SharedGradient weight;
  SharedGradient bias;
};

/// The sums of both shared gradients, in one or the other way.
class SharedSums {
 public:
  SharedSums(const LocalCall& call, bool reproducible)
      : exact_(reproducible ? call.weight.size() + call.bias.size() : 0),
        reproducible_(reproducible) {}

  /// Adds what the local layer has just written.
  void add(const LocalCall& call) {
    const std::vector<double> weight = call.weight.values();
    const std::vector<double> bias = call.bias.values();
    if (reproducible_) {
      exact_.add(0, weight);
      exact_.add(weight.size(), bias);
    } else {
      plain_ = weight;
      plain_.insert(plain_.end(), bias.begin(), bias.end());
    }
  }

  void combine_and_write(const LocalCall& call, Communicator& communicator) {
    if (reproducible_) {
      exact_.combine(communicator);
      plain_.resize(call.weight.size() + call.bias.size());
      exact_.read(0, plain_);
    } else {
      communicator.sum(plain_);
    }
    const std::span<const double> sums(plain_);
    call.weight.write(sums.first(call.weight.size()));
    call.bias.write(sums.subspan(call.weight.size()));
  }

 private:
  ReproducibleSum exact_;
  std::vector<double> plain_;
  bool reproducible_;
};

void run_local(const Layer& layer, const LocalCall& call, const Options& options,
               const Workspace& workspace, bool one_by_one, SharedSums& sums) {
  if (!one_by_one) {
    layer.loss(call.request, call.result, options, workspace);
    sums.add(call);
    return;
  }
  for (std::int64_t b = 0; b < call.request.frame_lengths.extent(0); ++b) {
    layer.loss(slice_request(call.request, b), slice_result(call.result, b), options, workspace);
    sums.add(call);
  }
}

bool has_shared_gradient(const LossResult& result) {
  return result.weight_gradient.defined() || result.bias_gradient.defined();
}

}  // namespace

WorkspacePlan plan_workspace(const Layer& layer, const LossShape& shape, const Options& options,
                             const Placement& placement) {
  LossShape local = shape;
  // One utterance at a time needs no more than the batch, but for a dense batch nothing changes.
  if (placement.reproducible && local.hidden > 0) {
    local.batch = std::min<std::int64_t>(local.batch, 1);
    local.max_rows = 0;
  }
  WorkspacePlan one = layer.plan_workspace(local, options);
  WorkspacePlan all = layer.plan_workspace(shape, options);
  return one.scratch_bytes() > all.scratch_bytes() ? one : all;
}

void loss(const Layer& layer, const LossRequest& request, const LossResult& result,
          const Options& options, const Workspace& workspace, const Placement& placement,
          Communicator& communicator) {
  const std::string caller(request.caller);
  const Gathered parts = gather_or_throw(
      caller, communicator, [&] { return describe_part(request, result, options, placement); });
  const Whole whole = describe_whole(parts, request.reduction, caller, communicator);
  const bool one_by_one = placement.reproducible && has_shared_gradient(result);
  check(
      !one_by_one || static_cast<std::int64_t>(whole.numbers.size()) <= ReproducibleSum::kMaxTerms,
      caller, ": the batch has ", whole.numbers.size(), " utterances, expected at most ",
      ReproducibleSum::kMaxTerms, " because the reproducible sum holds no more terms");

  LocalCall call(request, result, whole);
  SharedSums sums(call, one_by_one);
  const Gathered gathered = gather_or_throw(caller, communicator, [&] {
    run_local(layer, call, options, workspace, one_by_one, sums);
    std::vector<std::byte> bytes;
    append(bytes, std::span<const double>(call.costs));
    return bytes;
  });
  const std::vector<double> costs = read_all<double>(gathered.bytes);
  double total = 0.0;
  for (const std::size_t position : whole.order) total += costs[position];
  if (result.total.defined()) write_real(result.total, {}, total * whole.scale);
  for (std::size_t b = 0; b < call.costs.size() && result.costs.defined(); ++b) {
    write_real(result.costs, {static_cast<std::int64_t>(b)}, call.costs[b]);
  }
  if (has_shared_gradient(result)) sums.combine_and_write(call, communicator);
}

}  // namespace transducer::distributed
