// SPDX-License-Identifier: Apache-2.0
//
// The stages as the entry calls them: host functions that choose a kernel and launch it on the stream.
#pragma once

#include "cuda/call_view.hpp"
#include "cuda/loss.hpp"
#include "cuda/memory.hpp"
#include "reference/core/validate.hpp"

namespace transducer::cuda {

/// A request compiled once. Real is float, double for float64 inputs.
template <class Real>
struct Call {
  const LossRequest& request;
  const LossResult& result;
  const ValidRequest& valid;
  CallView view;
  Memory<Real> memory;
  Stream stream;
};

/// Stage 1 for dense logits: fills node_scores.
template <class Real>
void dense_scores(const Call<Real>& call);

/// Between the stages: label_arcs, boundary scores, cleared counters; then arc weights from node scores, or
/// from the caller's weights; those that the result asks for, NaN where they read NaN or +inf; then whether
/// such an arc lies on a path.
template <class Real>
void prepare(const Call<Real>& call);
template <class Real>
void make_arc_weights(const Call<Real>& call);
template <class Real>
void write_arc_weights(const Call<Real>& call);
template <class Real>
void settle_poison(const Call<Real>& call);

/// Stage 2: alpha, beta, costs; posteriors in place of the weights and kept rows if `posteriors`. Writes what
/// the result asks for of the lattice.
template <class Real>
void lattice(const Call<Real>& call, bool posteriors, double skip_mass);

/// In place of the lattice: posteriors that are minus a given gradient of the arc weights, every node with one
/// that is not 0 kept.
template <class Real>
void load_weights_gradient(const Call<Real>& call, const TensorRef& weights_gradient);

/// Stage 3 for dense logits, and the gradients that pass through no logit.
template <class Real>
void dense_gradient(const Call<Real>& call);
template <class Real>
void boundary_and_arc_gradients(const Call<Real>& call);

/// Costs and total if the result names them; scale [B] if `with_scale`.
template <class Real>
void write_costs(const Call<Real>& call, bool with_costs, bool with_scale);

/// Rows that the forward of the joint source works on.
template <class Real>
void reachable_rows(const Call<Real>& call);

}  // namespace transducer::cuda
