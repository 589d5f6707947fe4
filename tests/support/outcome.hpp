// SPDX-License-Identifier: Apache-2.0
//
// Whole outcomes of a batch: compared bit by bit, cut into utterances, and the padding of a batch
// filled with what nobody may read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/compare.hpp"
#include "tests/support/fixture.hpp"

namespace transducer::testing {

/// Part b of an array whose first axis has `batch` entries.
template <class T>
std::vector<T> part(const std::vector<T>& values, std::int64_t b, std::int64_t batch) {
  const std::size_t width = values.size() / static_cast<std::size_t>(batch);
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(width) * b;
  return {begin, begin + static_cast<std::ptrdiff_t>(width)};
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// Costs and gradients of utterance b, end to end.
inline std::vector<double> results_of(const Outcome& o, std::int64_t b, std::int64_t batch) {
  std::vector<double> all;
  for (const auto* values : {&o.costs, &o.logits_gradient, &o.arc_scores_gradient,
                             &o.start_scores_gradient, &o.final_scores_gradient}) {
    append(all, part(*values, b, batch));
  }
  return all;
}

/// The same with everything else that an outcome holds per utterance.
inline std::vector<double> everything_of(const Outcome& o, std::int64_t b, std::int64_t batch) {
  std::vector<double> all = results_of(o, b, batch);
  for (const auto* values : {&o.arc_weights, &o.alpha, &o.beta, &o.arc_posterior, &o.occupancy}) {
    append(all, part(*values, b, batch));
  }
  return all;
}

inline std::string bit_difference(const std::string& what, const Outcome& got, const Outcome& want,
                                  std::int64_t batch) {
  std::string wrong;
  for (std::int64_t b = 0; b < batch && wrong.empty(); ++b) {
    wrong = bit_difference(what + ", utterance " + std::to_string(b), everything_of(got, b, batch),
                           everything_of(want, b, batch));
  }
  return wrong;
}

/// The batch that holds the utterances `order` of `batch`, in that order.
inline DenseBatch select(const DenseBatch& batch, const std::vector<std::int64_t>& order) {
  DenseBatch chosen = batch;
  chosen.B = static_cast<std::int64_t>(order.size());
  const auto pick = [&](auto& to, const auto& from) {
    to.clear();
    for (std::int64_t b : order) append(to, part(from, b, batch.B));
  };
  pick(chosen.logits, batch.logits);
  pick(chosen.targets, batch.targets);
  pick(chosen.frame_lengths, batch.frame_lengths);
  pick(chosen.target_lengths, batch.target_lengths);
  pick(chosen.arc_scores, batch.arc_scores);
  pick(chosen.band, batch.band);
  pick(chosen.start_scores, batch.start_scores);
  pick(chosen.final_scores, batch.final_scores);
  pick(chosen.upstream, batch.upstream);
  return chosen;
}

/// Calls visit(b, t, u, is_padding) for every node of the padded batch.
template <class Visit>
void for_each_padded_node(const DenseBatch& batch, Visit&& visit) {
  for (std::int64_t b = 0; b < batch.B; ++b) {
    for (std::int64_t t = 0; t < batch.T; ++t) {
      for (std::int64_t u = 0; u <= batch.U; ++u) {
        visit(b, t, u,
              t >= batch.frame_lengths[static_cast<std::size_t>(b)] ||
                  u > batch.target_lengths[static_cast<std::size_t>(b)]);
      }
    }
  }
}

/// Fills a row of the last axis, of an array [B, T, U+1, width].
inline void fill_row(const DenseBatch& batch, std::vector<double>& values, std::int64_t width,
                     std::int64_t b, std::int64_t t, std::int64_t u, double value) {
  if (values.empty()) return;
  const auto begin = values.begin() + ((b * batch.T + t) * (batch.U + 1) + u) * width;
  std::fill(begin, begin + width, value);
}

/// The batch with NaN, impossible labels and impossible bands wherever padding is.
inline DenseBatch with_hostile_padding(DenseBatch batch) {
  for_each_padded_node(batch, [&](std::int64_t b, std::int64_t t, std::int64_t u, bool padding) {
    if (!padding) return;
    fill_row(batch, batch.logits, batch.K, b, t, u, kNaN);
    fill_row(batch, batch.arc_scores, batch.A(), b, t, u, kNaN);
  });
  for (std::int64_t b = 0; b < batch.B; ++b) {
    const std::int64_t frames = batch.frame_lengths[static_cast<std::size_t>(b)];
    for (std::int64_t u = batch.target_lengths[static_cast<std::size_t>(b)]; u < batch.U; ++u) {
      batch.targets[static_cast<std::size_t>(b * batch.U + u)] = u % 2 == 0 ? 1 << 30 : -77;
    }
    for (std::int64_t t = frames; t < batch.T; ++t) {
      const auto row = static_cast<std::size_t>(b * batch.T + t);
      if (!batch.start_scores.empty()) batch.start_scores[row] = kNaN;
      if (!batch.band.empty()) batch.band[2 * row] = batch.band[2 * row + 1] = -(1 << 30);
    }
    // With no frame neither start nor final scores are read.
    for (std::int64_t t = frames == 0 ? 0 : frames + 1; t <= batch.T; ++t) {
      const auto i = static_cast<std::size_t>(b * (batch.T + 1) + t);
      if (!batch.final_scores.empty()) batch.final_scores[i] = kNaN;
    }
  }
  return batch;
}

}  // namespace transducer::testing
