// SPDX-License-Identifier: Apache-2.0
//
// What to compute and where to write it: the two structs that every layer takes.
//
//   LossRequest   a source of arc weights, labels, lengths, a variant, the mathematical options
//   LossResult    costs, gradients, lattice quantities; whatever is absent is not computed
//   Options       how to compute: threads, limits, a callback that cancels
//   LossShape     the sizes a workspace plan needs
//
// Letters as in docs/notation.md: B utterances, T frames, U labels, K logit columns, H joint width,
// A arcs. All arrays are borrowed; any strides.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>

#include "reference/core/tensor_ref.hpp"
#include "reference/core/variant_table.hpp"

namespace transducer {

/// Logits that exist as an array.
struct DenseSource {
  TensorRef logits;  // [B, T, U+1, K]
};

enum class Activation : std::uint8_t {
  identity,
  relu,
  leaky_relu,  ///< slope 0.01
  tanh,
  sigmoid,
  gelu,  ///< x Phi(x), the erf form
  silu
};

enum class Precision : std::uint8_t { highest, high };

/// Logits made on the fly: z(t, u) = W drop(act(E_t + mask_u P_u)) + c.
struct JointSource {
  TensorRef encoder;         // [B, T, H]
  TensorRef predictor;       // [B, U+1, H]
  TensorRef weight;          // [K, H]
  TensorRef bias;            // [K], optional
  TensorRef predictor_mask;  // [B, U+1], optional
  Activation activation = Activation::relu;
  double dropout = 0.0;     ///< probability that a joint unit is dropped; 0 is off
  std::uint64_t seed = 0;   ///< key of the generator that draws the dropout mask
  TensorRef utterance_ids;  // [B] int32 or int64, optional: default is the batch index
  Precision precision = Precision::highest;
};

/// Complete arc weights, from `scores` or made by the caller; -inf forbids an arc.
struct ArcWeightSource {
  TensorRef arc_weights;  // [B, T, U+1, A]
};

enum class Semiring : std::uint8_t { log, max };

enum class Reduction : std::uint8_t {
  none,         ///< one cost per utterance; gradients are those of the sum
  sum,          ///< sum over the batch
  mean,         ///< sum / B
  mean_target,  ///< sum / sum of target lengths
  mean_frame    ///< sum / sum of frame counts
};

struct LossRequest {
  std::string_view caller = "loss";  ///< the name at the head of error messages
  std::variant<DenseSource, JointSource, ArcWeightSource> source;
  TensorRef targets;         // [B, U] int32 or int64; unused with arc weights
  TensorRef frame_lengths;   // [B] T_b
  TensorRef target_lengths;  // [B] U_b
  VariantTable variant;

  TensorRef arc_scores;    // broadcasts to [B, T, U+1, A], optional
  TensorRef band;          // [B, T, 2] first and last u allowed, optional
  TensorRef start_scores;  // [B, T] on (t, 0), optional
  TensorRef final_scores;  // [B, T+1] on (t, U), optional

  Semiring semiring = Semiring::log;
  Reduction reduction = Reduction::mean;
  double clamp = 0.0;  ///< > 0: each logit gradient is clamped to [-clamp, clamp] at unit scale
  bool zero_infinity = false;
  bool from_log_probs = false;
  double skip_mass = -1.0;  ///< occupancy that the backward may leave out; < 0: the layer's default

  /// Incoming gradient: [B] with Reduction::none, else rank 0. Absent: 1.
  TensorRef upstream;
};

/// Outputs. Each absent one (rank -1) is skipped. Gradients have the shape of their input and are
/// written, not added to; padding gets exactly 0.
struct LossResult {
  TensorRef costs;  // [B]
  TensorRef total;  // [], the reduced cost

  TensorRef logits_gradient;       // [B, T, U+1, K]; may be the logits themselves (in place)
  TensorRef encoder_gradient;      // [B, T, H]
  TensorRef predictor_gradient;    // [B, U+1, H]
  TensorRef weight_gradient;       // [K, H]
  TensorRef bias_gradient;         // [K]
  TensorRef arc_weights_gradient;  // [B, T, U+1, A]
  TensorRef arc_scores_gradient;   // the shape of arc_scores before broadcasting
  TensorRef start_scores_gradient;
  TensorRef final_scores_gradient;

  TensorRef arc_weights;    // [B, T, U+1, A]
  TensorRef alpha;          // [B, T+1, U+1]
  TensorRef beta;           // [B, T+1, U+1]
  TensorRef arc_posterior;  // [B, T, U+1, A]
  TensorRef occupancy;      // [B, T, U+1]
  TensorRef skipped_mass;   // [B]
};

/// How to compute. `cancelled` is polled between utterances or tiles; true raises Cancelled.
struct Options {
  int threads = 0;                   ///< 0: the layer's default
  std::int64_t workspace_limit = 0;  ///< bytes of scratch; 0: no limit
  bool validate = true;              ///< read labels and lengths and check them
  bool (*cancelled)(void*) = nullptr;
  void* cancelled_context = nullptr;
};

/// Sizes that decide how much memory a call needs.
struct LossShape {
  std::int64_t batch = 0;       // B
  std::int64_t frames = 0;      // T
  std::int64_t labels = 0;      // U
  std::int64_t columns = 0;     // K
  std::int64_t hidden = 0;      // H; 0: dense source
  int arcs = 0;                 // A
  int groups = 0;               // G
  int taps = 0;                 ///< logit columns that arcs read by name, at most 2 A
  std::int64_t max_rows = 0;    ///< bound on the lattice rows of the batch; 0: B * T * (U+1)
  std::int64_t arc_scores = 0;  ///< elements of arc_scores whose gradient is wanted
  DType dtype = DType::float32;
  bool gradient = true;  ///< any gradient is wanted
  bool apart = false;    ///< forward and backward are calls of their own
};

}  // namespace transducer
