// SPDX-License-Identifier: Apache-2.0
#include "distributed/slice.hpp"

namespace transducer::distributed {
namespace {

TensorRef row_of(TensorRef tensor, std::int64_t b) {
  if (tensor.rank < 1) return tensor;
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  tensor.data = static_cast<char*>(tensor.data) + b * tensor.strides[0] * bytes;
  tensor.extents[0] = 1;
  return tensor;
}

/// arc_scores broadcast: their batch axis may be missing or 1.
TensorRef row_of_arc_scores(const TensorRef& tensor, std::int64_t b) {
  return tensor.rank == 4 && tensor.extents[0] > 1 ? row_of(tensor, b) : tensor;
}

struct SourceRow {
  std::int64_t b;

  void operator()(DenseSource& source) const { source.logits = row_of(source.logits, b); }
  void operator()(ArcWeightSource& source) const {
    source.arc_weights = row_of(source.arc_weights, b);
  }
  void operator()(JointSource& source) const {
    source.encoder = row_of(source.encoder, b);
    source.predictor = row_of(source.predictor, b);
    source.predictor_mask = row_of(source.predictor_mask, b);
    source.utterance_ids = row_of(source.utterance_ids, b);
  }
};

}  // namespace

LossRequest slice_request(const LossRequest& request, std::int64_t b) {
  LossRequest row = request;
  std::visit(SourceRow{b}, row.source);
  row.arc_scores = row_of_arc_scores(request.arc_scores, b);
  for (TensorRef* tensor : {&row.targets, &row.frame_lengths, &row.target_lengths, &row.band,
                            &row.start_scores, &row.final_scores, &row.upstream}) {
    *tensor = row_of(*tensor, b);
  }
  return row;
}

LossResult slice_result(const LossResult& result, std::int64_t b) {
  LossResult row = result;
  row.total = {};
  row.arc_scores_gradient = row_of_arc_scores(result.arc_scores_gradient, b);
  for (TensorRef* tensor :
       {&row.costs, &row.logits_gradient, &row.encoder_gradient, &row.predictor_gradient,
        &row.arc_weights_gradient, &row.start_scores_gradient, &row.final_scores_gradient,
        &row.arc_weights, &row.alpha, &row.beta, &row.arc_posterior, &row.occupancy,
        &row.skipped_mass}) {
    *tensor = row_of(*tensor, b);
  }
  return row;
}

}  // namespace transducer::distributed
