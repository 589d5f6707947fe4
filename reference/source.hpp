// SPDX-License-Identifier: Apache-2.0
//
// The logits of one node, from either source (docs/math.md#sources):
//
//   dense   z(t, u) = logits[b, t, u, :]
//   joint   z(t, u) = W drop(act(E_t + m_u P_u)) + c
//
// and the way back: from dz(t, u) to the gradients of E, P, W and c. All in double.
#pragma once

#include <cstdint>
#include <span>

#include "reference/core/request.hpp"
#include "reference/utterance.hpp"

namespace transducer::reference {

/// act(x) and its derivative; relu'(0) = 0, leaky_relu has slope 0.01, gelu is the erf form.
double activate(Activation activation, double x);
double activation_derivative(Activation activation, double x);

/// Reads nodes of one request, and for joint inputs keeps what the way back needs.
struct NodeReader {
  const LossRequest* request = nullptr;
  std::span<double> logits;  // [K] of the node read last

  // Joint inputs only.
  std::span<double> weight;          // [K, H] W, widened once
  std::span<double> bias;            // [K] c, 0 without one
  std::span<double> sum;             // [H] E_t + m_u P_u
  std::span<double> hidden;          // [H] drop(act(sum))
  std::span<double> dropout_factor;  // [H] 0 or 1 / (1 - p)

  /// Fills `logits` for node (t, u).
  void read(const Utterance& utterance, std::int64_t t, std::int64_t u);

 private:
  void read_joint(const JointSource& source, const Utterance& utterance, std::int64_t t,
                  std::int64_t u);
};

/// Widens W and c; does nothing for dense logits.
void load_output_layer(NodeReader& reader);

/// Sums of the joint gradients, in double until they are complete.
struct JointGradientSums {
  std::span<double> encoder;    // [T, H] of one utterance
  std::span<double> predictor;  // [U+1, H] of one utterance
  std::span<double> weight;     // [K, H] of the batch
  std::span<double> bias;       // [K] of the batch
};

/// Adds the contribution of dz at node (t, u), which `reader` has just read.
void add_joint_gradient(const NodeReader& reader, const Utterance& utterance, std::int64_t t,
                        std::int64_t u, std::span<const double> logits_gradient,
                        JointGradientSums& sums);

}  // namespace transducer::reference
