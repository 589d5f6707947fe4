// SPDX-License-Identifier: Apache-2.0
#include "reference/core/validate_on_host.hpp"

#include <initializer_list>
#include <variant>

#include "reference/core/error.hpp"

namespace transducer {

ValidRequest validate_on_host(const LossRequest& request, const LossResult& result, Options options,
                              std::string_view layer) {
  const auto check_host = [&](std::initializer_list<const TensorRef*> tensors) {
    for (const TensorRef* tensor : tensors) {
      check(!tensor->defined() || tensor->device.type == DeviceType::cpu, request.caller, ": ",
            layer, " reads host memory only, got an array on a device; copy it to the host");
    }
  };
  if (const auto* dense = std::get_if<DenseSource>(&request.source)) {
    check_host({&dense->logits});
  } else if (const auto* joint = std::get_if<JointSource>(&request.source)) {
    check_host({&joint->encoder, &joint->predictor, &joint->weight, &joint->bias,
                &joint->predictor_mask, &joint->utterance_ids});
  } else {
    check_host({&std::get<ArcWeightSource>(request.source).arc_weights});
  }
  check_host({&request.targets, &request.frame_lengths, &request.target_lengths,
              &request.arc_scores, &request.band, &request.start_scores, &request.final_scores,
              &request.upstream});
  check_host({&result.costs, &result.total, &result.logits_gradient, &result.encoder_gradient,
              &result.predictor_gradient, &result.weight_gradient, &result.bias_gradient,
              &result.arc_weights_gradient, &result.arc_scores_gradient,
              &result.start_scores_gradient, &result.final_scores_gradient, &result.arc_weights,
              &result.alpha, &result.beta, &result.arc_posterior, &result.occupancy,
              &result.skipped_mass});
  options.validate = true;
  return validate(request, result, options);
}

}  // namespace transducer
