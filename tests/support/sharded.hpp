// SPDX-License-Identifier: Apache-2.0
//
// One ragged batch, whole on the cpu layer or in parts on several ranks, and the comparison of the two.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "cpu/loss.hpp"
#include "distributed/loss.hpp"
#include "distributed/shard.hpp"
#include "reference/core/validate.hpp"
#include "reference/variants/rnnt.hpp"
#include "tests/support/fixture.hpp"
#include "tests/support/typed_array.hpp"

namespace transducer::testing {

inline constexpr distributed::Layer kCpuLayer = {cpu::plan_workspace, cpu::loss};

struct ShardCase {
  bool joint = false;
  DType dtype = DType::float64;
  Reduction reduction = Reduction::mean;
  bool reproducible = false;
  double dropout = 0.0;
  std::int64_t poisoned = -1;  ///< an utterance whose source holds NaN
};

struct ShardOutcome {
  double total = 0.0;
  std::vector<double> costs;          // [b]
  std::vector<double> first, second;  // gradients [b, ...]: logits, or encoder and predictor
  std::vector<double> weight, bias;   // joint only
};

/// B = 11 utterances, one without labels and one without frames or labels.
class ShardBatch {
 public:
  static constexpr std::int64_t B = 11, T = 7, U = 3, K = 9, H = 6;

  explicit ShardBatch(ShardCase settings) : case_(settings) {
    std::mt19937_64 random(17);
    std::normal_distribution<double> normal;
    const auto draw = [&](std::int64_t count) {
      std::vector<double> values(static_cast<std::size_t>(count));
      for (double& value : values) value = normal(random);
      return values;
    };
    first_ = draw(B * first_size());
    second_ = draw(B * (U + 1) * H);
    weight_ = draw(K * H);
    bias_ = draw(K);
    for (std::int64_t b = 0; b < B; ++b) {
      frames_.push_back(b == 5 ? 0 : 1 + static_cast<std::int64_t>(random() % T));
      labels_.push_back(b == 5 || b == 7 ? 0 : static_cast<std::int64_t>(random() % (U + 1)));
      upstream_.push_back(0.25 + static_cast<double>(b));
      for (std::int64_t u = 0; u < U; ++u)
        targets_.push_back(static_cast<std::int64_t>(random() % (K - 1)));
    }
    if (case_.poisoned >= 0) {
      first_[static_cast<std::size_t>(case_.poisoned * first_size())] = std::nan("");
    }
  }

  std::vector<std::int64_t> rows() const {
    std::vector<std::int64_t> rows;
    for (std::size_t b = 0; b < frames_.size(); ++b) {
      rows.push_back(distributed::lattice_rows(frames_[b], labels_[b]));
    }
    return rows;
  }

  /// The cpu layer on the whole batch.
  ShardOutcome whole() const {
    std::vector<std::int64_t> all;
    for (std::int64_t b = 0; b < B; ++b) all.push_back(b);
    return run(all,
               [](const LossRequest& request, const LossResult& result, const Options& options) {
                 ScratchBuffer scratch(cpu::plan_workspace(shape_of(request, result), options));
                 cpu::loss(request, result, options, scratch.workspace());
               });
  }

  /// This rank's utterances, with the others' on other ranks.
  ShardOutcome part(const std::vector<std::int64_t>& utterances,
                    distributed::Communicator& communicator) const {
    const distributed::Placement placement{utterances, case_.reproducible};
    return run(utterances,
               [&](const LossRequest& request, const LossResult& result, const Options& options) {
                 ScratchBuffer scratch(distributed::plan_workspace(
                     kCpuLayer, shape_of(request, result), options, placement));
                 distributed::loss(kCpuLayer, request, result, options, scratch.workspace(),
                                   placement, communicator);
               });
  }

  std::int64_t first_size() const { return case_.joint ? T * H : T * (U + 1) * K; }
  std::int64_t second_size() const { return case_.joint ? (U + 1) * H : 0; }

  std::vector<std::int64_t> frames() const { return frames_; }
  std::vector<std::int64_t> labels() const { return labels_; }
  const std::vector<double>& upstream() const { return upstream_; }

 private:
  /// Elements [b] of an array of rows, for each of the utterances.
  template <class Value>
  static std::vector<Value> choose(const std::vector<Value>& values,
                                   const std::vector<std::int64_t>& utterances, std::int64_t size) {
    std::vector<Value> chosen;
    for (const std::int64_t b : utterances) {
      chosen.insert(chosen.end(), values.begin() + b * size, values.begin() + (b + 1) * size);
    }
    return chosen;
  }

  template <class Run>
  ShardOutcome run(const std::vector<std::int64_t>& utterances, const Run& compute) const {
    const auto b = static_cast<std::int64_t>(utterances.size());
    const std::vector<std::int64_t> first_shape = case_.joint
                                                      ? std::vector<std::int64_t>{b, T, H}
                                                      : std::vector<std::int64_t>{b, T, U + 1, K};
    TypedArray first(case_.dtype, first_shape, choose(first_, utterances, first_size()));
    TypedArray second(case_.dtype, {b, U + 1, H}, choose(second_, utterances, (U + 1) * H));
    TypedArray weight(case_.dtype, {K, H}, weight_);
    TypedArray bias(case_.dtype, {K}, bias_);
    TypedArray d_first(case_.dtype, first_shape);
    TypedArray d_second(case_.dtype, {b, U + 1, H});
    TypedArray d_weight(case_.dtype, {K, H});
    TypedArray d_bias(case_.dtype, {K});
    std::vector<std::int64_t> targets = choose(targets_, utterances, U);
    std::vector<std::int64_t> frames = choose(frames_, utterances, 1);
    std::vector<std::int64_t> labels = choose(labels_, utterances, 1);
    std::vector<double> upstream = choose(upstream_, utterances, 1);
    double common = 0.75;

    LossRequest request;
    request.caller = "test";
    request.variant = rnnt(position(-1));
    request.targets = DenseBatch::index(targets, {b, U});
    request.frame_lengths = DenseBatch::index(frames, {b});
    request.target_lengths = DenseBatch::index(labels, {b});
    request.reduction = case_.reduction;
    request.upstream = case_.reduction == Reduction::none
                           ? DenseBatch::real(upstream, {b})
                           : contiguous_ref(&common, DType::float64, {});
    ShardOutcome outcome;
    LossResult result;
    result.costs = DenseBatch::make(outcome.costs, {b});
    result.total = contiguous_ref(&outcome.total, DType::float64, {});
    if (case_.joint) {
      request.source = JointSource{.encoder = first.ref(),
                                   .predictor = second.ref(),
                                   .weight = weight.ref(),
                                   .bias = bias.ref(),
                                   .activation = Activation::tanh,
                                   .dropout = case_.dropout,
                                   .seed = 5};
      result.encoder_gradient = d_first.ref();
      result.predictor_gradient = d_second.ref();
      result.weight_gradient = d_weight.ref();
      result.bias_gradient = d_bias.ref();
    } else {
      request.source = DenseSource{first.ref()};
      result.logits_gradient = d_first.ref();
    }
    compute(request, result, Options{.threads = 1});
    outcome.first = d_first.values();
    if (case_.joint) {
      outcome.second = d_second.values();
      outcome.weight = d_weight.values();
      outcome.bias = d_bias.values();
    }
    return outcome;
  }

  ShardCase case_;
  std::vector<double> first_, second_, weight_, bias_, upstream_;
  std::vector<std::int64_t> targets_, frames_, labels_;
};

/// Whether two numbers have the same value, NaN included.
inline bool same_number(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

inline bool same_numbers(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_number(a[i], b[i])) return false;
  }
  return true;
}

/// The utterances that shard() gives to a rank, in ascending order.
inline std::vector<std::int64_t> utterances_of(const ShardBatch& batch, int rank, int ranks) {
  const std::vector<int> owners = distributed::shard(batch.rows(), ranks);
  std::vector<std::int64_t> mine;
  for (std::size_t b = 0; b < owners.size(); ++b) {
    if (owners[b] == rank) mine.push_back(static_cast<std::int64_t>(b));
  }
  return mine;
}

/// Rows of `whole` that belong to the utterances.
inline std::vector<double> rows_of(const std::vector<double>& whole,
                                   const std::vector<std::int64_t>& utterances, std::int64_t size) {
  std::vector<double> rows;
  for (const std::int64_t b : utterances) {
    rows.insert(rows.end(), whole.begin() + b * size, whole.begin() + (b + 1) * size);
  }
  return rows;
}

}  // namespace transducer::testing
