// SPDX-License-Identifier: Apache-2.0
#include "cpu/arc_scores.hpp"

#include <cmath>
#include <limits>

namespace transducer::cpu {
namespace {

/// Row-major index, in the array before broadcasting, of what broadcasts to (b, t, u, a).
std::int64_t flat_index(const TensorRef& broadcast, std::int64_t b, std::int64_t t, std::int64_t u,
                        std::int64_t a) {
  const std::int64_t index[4] = {b, t, u, a};
  std::int64_t flat = 0;
  for (int axis = 0; axis < 4; ++axis) {
    if (broadcast.strides[axis] != 0) flat = flat * broadcast.extents[axis] + index[axis];
  }
  return flat;
}

}  // namespace

void add_arc_scores_gradient(const Call& call, std::span<Utterance> utterances,
                             std::span<double> sum) {
  const TensorRef& broadcast = call.valid.arc_scores_gradient;
  for (const Utterance& utterance : utterances) {
    for (std::int64_t t = 0; t < utterance.frames; ++t) {
      for (std::int64_t u = 0; u <= utterance.labels; ++u) {
        for (int a = 0; a < call.plan.num_arcs; ++a) {
          const double gamma = utterance.weight_row(a, t)[u];
          if (gamma == 0.0) continue;
          const std::int64_t i = flat_index(broadcast, utterance.batch_index, t, u, a);
          sum[static_cast<std::size_t>(i)] -= std::isnan(gamma) ? gamma : gamma * utterance.scale;
        }
      }
    }
  }
}

void write_arc_scores_gradient(const Call& call, std::span<const double> sum) {
  const TensorRef& tensor = call.result.arc_scores_gradient;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    auto rest = static_cast<std::int64_t>(i);
    std::int64_t offset = 0;
    for (int axis = tensor.rank - 1; axis >= 0; --axis) {
      offset += rest % tensor.extents[axis] * tensor.strides[axis];
      rest /= tensor.extents[axis];
    }
    TensorRef element = tensor;
    element.rank = 0;
    visit_real(tensor.dtype,
               [&]<class Scalar>() { element.data = static_cast<Scalar*>(tensor.data) + offset; });
    write_real(element, {}, sum[i]);
  }
}

void load_weights_gradient(const Call& call, const TensorRef& weights_gradient,
                           std::span<Utterance> utterances) {
  call.team.for_each(static_cast<std::int64_t>(utterances.size()), [&](std::int64_t i, int) {
    Utterance& utterance = utterances[static_cast<std::size_t>(i)];
    utterance.feasible = true;
    utterance.keeps_all = true;
    for (int a = 0; a < call.plan.num_arcs; ++a) {
      for (std::int64_t t = 0; t < utterance.frames; ++t) {
        double* row = utterance.weight_row(a, t);
        for (std::int64_t u = 0; u < utterance.rows(); ++u) {
          const bool exists = row[u] != -std::numeric_limits<double>::infinity();
          row[u] = exists ? -read_real(weights_gradient, {utterance.batch_index, t, u, a}) : 0.0;
        }
      }
    }
  });
}

}  // namespace transducer::cpu
