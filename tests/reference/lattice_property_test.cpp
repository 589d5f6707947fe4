// SPDX-License-Identifier: Apache-2.0
//
// What the lattice of any variant must satisfy: probability mass across cuts, agreement of alpha
// and beta, the best path with its tie rule, and monotony in the scores.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reference/core/log_math.hpp"
#include "reference/inspection.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/generators.hpp"
#include "tests/support/property.hpp"

namespace transducer::testing {
namespace {

/// Gives a batch explicit start and final scores, equal to the defaults where it has none: their
/// gradients are then minus the probabilities of starting and ending.
void make_boundaries_explicit(DenseBatch& batch) {
  const auto frames = static_cast<std::size_t>(batch.T);
  if (batch.start_scores.empty()) {
    batch.start_scores.assign(static_cast<std::size_t>(batch.B) * frames, -kInf);
    for (std::size_t b = 0; frames > 0 && b < static_cast<std::size_t>(batch.B); ++b) {
      batch.start_scores[b * frames] = 0.0;
    }
  }
  if (batch.final_scores.empty()) {
    batch.final_scores.assign(static_cast<std::size_t>(batch.B) * (frames + 1), -kInf);
    for (std::size_t b = 0; b < static_cast<std::size_t>(batch.B); ++b) {
      const auto end = static_cast<std::size_t>(batch.frame_lengths[b]);
      batch.final_scores[b * (frames + 1) + end] = 0.0;
    }
  }
}

/// t + u never falls along a path. So for each k a path starts at a node with t + u >= k, or ends
/// at one with t + u < k, or has exactly one arc from t + u < k to t + u >= k: masses add to 1.
TEST(Lattice, MassAcrossEachCutIsOne) {
  int cuts = 0;
  for_all(any_batch(), [&](DenseBatch batch) {
    make_boundaries_explicit(batch);
    const Outcome o = batch.run();
    std::string wrong;
    for (std::int64_t b = 0; b < batch.B; ++b) {
      const std::int64_t frames = batch.frame_lengths[static_cast<std::size_t>(b)];
      const std::int64_t labels = batch.target_lengths[static_cast<std::size_t>(b)];
      if (!std::isfinite(o.costs[static_cast<std::size_t>(b)]) || frames == 0) continue;
      for (std::int64_t k = 1; k <= frames + labels; ++k, ++cuts) {
        double mass = 0.0;
        for (std::int64_t t = 0; t <= frames; ++t) {
          if (t < frames && t >= k) {
            mass -= o.start_scores_gradient[static_cast<std::size_t>(b * batch.T + t)];
          }
          if (t + labels < k) {
            mass -= o.final_scores_gradient[static_cast<std::size_t>(b * (batch.T + 1) + t)];
          }
          for (std::int64_t u = 0; t < frames && u <= labels && t + u < k; ++u) {
            for (int a = 0; a < batch.variant.num_arcs; ++a) {
              const Arc& arc = batch.variant.arcs[a];
              if (t + u + arc.dt + arc.du < k) continue;
              mass += o.arc_posterior[static_cast<std::size_t>(
                  ((b * batch.T + t) * (batch.U + 1) + u) * batch.A() + a)];
            }
          }
        }
        wrong += difference("mass across cut " + std::to_string(k), mass, 1.0, 1e-12);
      }
    }
    return wrong;
  });
  EXPECT_GT(cuts, num_cases());
}

TEST(Lattice, AlphaAtTheEndsEqualsBetaAtTheStarts) {
  for_all(any_batch(), [](DenseBatch batch) {
    make_boundaries_explicit(batch);
    const Outcome o = batch.run();
    std::string wrong;
    const auto node = [&](std::int64_t b, std::int64_t t, std::int64_t u) {
      return static_cast<std::size_t>((b * (batch.T + 1) + t) * (batch.U + 1) + u);
    };
    for (std::int64_t b = 0; b < batch.B; ++b) {
      const std::int64_t frames = batch.frame_lengths[static_cast<std::size_t>(b)];
      const std::int64_t labels = batch.target_lengths[static_cast<std::size_t>(b)];
      const double cost = o.costs[static_cast<std::size_t>(b)];
      if (frames == 0) continue;
      const auto allowed = [&](std::int64_t t, std::int64_t u) {
        if (batch.band.empty() || t == frames) return true;
        const std::int64_t* row = batch.band.data() + (b * batch.T + t) * 2;
        return row[0] <= u && u <= row[1];
      };
      for (std::int64_t t = 0; t < frames; ++t) {
        for (std::int64_t u = 0; u <= labels; ++u) {
          if (allowed(t, u)) continue;
          wrong += difference("alpha outside the band", o.alpha[node(b, t, u)], -kInf, 0.0);
          wrong += difference("beta outside the band", o.beta[node(b, t, u)], -kInf, 0.0);
        }
      }
      double ends = -kInf;
      double starts = -kInf;
      for (std::int64_t t = 0; t <= frames; ++t) {
        if (allowed(t, labels)) {
          ends = log_add(ends,
                         o.alpha[node(b, t, labels)] +
                             batch.final_scores[static_cast<std::size_t>(b * (batch.T + 1) + t)]);
        }
        if (t < frames && allowed(t, 0)) {
          starts =
              log_add(starts, o.beta[node(b, t, 0)] +
                                  batch.start_scores[static_cast<std::size_t>(b * batch.T + t)]);
        }
        for (std::int64_t u = 0; t < frames && u <= labels && std::isfinite(cost); ++u) {
          const double passing = std::exp(o.alpha[node(b, t, u)] + o.beta[node(b, t, u)] + cost);
          const auto i = static_cast<std::size_t>((b * batch.T + t) * (batch.U + 1) + u);
          wrong += difference("occupancy", o.occupancy[i], passing, 1e-12);
        }
      }
      wrong += difference("alpha at the ends", 0.0 - ends, cost, 1e-12);
      wrong += difference("beta at the starts", 0.0 - starts, cost, 1e-12);
    }
    return wrong;
  });
}

/// Whether path `a` comes before `b` by the tie rule: the earlier end; then, from the end back, a
/// start before any arc, then the arc of lower index.
bool precedes(const reference::EnumeratedPath& a, const reference::EnumeratedPath& b) {
  if (a.end_frame != b.end_frame) return a.end_frame < b.end_frame;
  for (std::size_t i = 1;; ++i) {
    if (i > a.steps.size()) return i <= b.steps.size();
    if (i > b.steps.size()) return false;
    const int arc_a = a.steps[a.steps.size() - i].arc;
    const int arc_b = b.steps[b.steps.size() - i].arc;
    if (arc_a != arc_b) return arc_a < arc_b;
  }
}

/// Integer scores without a normaliser make ties, and their sums are exact.
TEST(Lattice, BestPathIsTheBestOfAllAndTiesAreBrokenFromTheEnd) {
  int ties = 0;
  for_all(any_batch({.limit = 1.0, .step = 1.0}), [&](DenseBatch batch) {
    for (int g = 0; g < batch.variant.num_groups; ++g) {
      if (batch.variant.groups[g].normaliser == Normaliser::softmax) {
        batch.variant.groups[g].normaliser = Normaliser::none;
      }
    }
    for (int a = 0; a < batch.variant.num_arcs; ++a) {
      Arc& arc = batch.variant.arcs[a];
      arc.constant = {};
      arc.frame_bonus = 0.0;
      for (int i = 0; i < arc.num_columns; ++i) {  // a log-sum is not an integer
        if (arc.columns[i].kind == ColumnKind::log_sum) arc.columns[i] = fixed_column(position(0));
      }
    }
    batch.from_log_probs = true;
    batch.semiring = Semiring::max;
    std::vector<double> marks(static_cast<std::size_t>(batch.B * batch.T * (batch.U + 1)) *
                              static_cast<std::size_t>(batch.A()));
    std::vector<double> costs;
    std::string wrong;
    const std::vector<reference::BestPath> found = reference::best_paths(batch.request(), {});
    for (std::int64_t b = 0; b < batch.B; ++b) {
      const auto paths = reference::enumerate_paths(tiny_lattice(batch, b));
      const reference::EnumeratedPath* best = nullptr;
      for (const auto& path : paths) {
        if (best != nullptr && path.weight == best->weight) ++ties;
        if (best == nullptr || path.weight > best->weight ||
            (path.weight == best->weight && precedes(path, *best))) {
          best = &path;
        }
      }
      costs.push_back(best == nullptr ? kInf : 0.0 - best->weight);
      const reference::BestPath& got = found[static_cast<std::size_t>(b)];
      if (got.exists != (best != nullptr)) wrong += "a best path exists or not, wrongly; ";
      if (best == nullptr || !got.exists) continue;
      wrong += difference("score of the best path", got.score, best->weight, 0.0);
      wrong += difference("its start", double(got.start_frame), double(best->start_frame), 0.0);
      wrong += difference("its end", double(got.end_frame), double(best->end_frame), 0.0);
      if (got.steps.size() != best->steps.size()) wrong += "its length differs; ";
      for (std::size_t i = 0; wrong.empty() && i < got.steps.size(); ++i) {
        const reference::PathStep& step = best->steps[i];
        if (got.steps[i].arc != step.arc || got.steps[i].t != step.t || got.steps[i].u != step.u) {
          wrong += "step " + std::to_string(i) + " differs; ";
        }
        marks[static_cast<std::size_t>(
            ((b * batch.T + step.t) * (batch.U + 1) + step.u) * batch.A() + step.arc)] = 1.0;
      }
    }
    const Outcome o = batch.run();
    wrong += difference("costs", o.costs, costs, 0.0);
    if (wrong.empty()) wrong += difference("arc posteriors", o.arc_posterior, marks, 0.0);
    return wrong;
  });
  EXPECT_GT(ties, num_cases());
}

TEST(Lattice, RaisingAnArcScoreNeverLowersTheLikelihood) {
  for_all(any_batch(), [](DenseBatch batch) {
    if (batch.arc_scores.empty()) {
      batch.arc_scores.assign(
          static_cast<std::size_t>(batch.B * batch.T * (batch.U + 1) * batch.A()), 0.0);
    }
    const Outcome before = batch.run();
    if (batch.arc_scores.empty()) return std::string();
    double& score = batch.arc_scores[batch.arc_scores.size() / 3];
    score = score == -kInf ? 0.0 : score + 0.5;
    const Outcome after = batch.run();
    for (std::size_t b = 0; b < before.costs.size(); ++b) {
      const double slack = 1e-13 * std::max(1.0, std::abs(before.costs[b]));
      if (after.costs[b] > before.costs[b] + slack) return std::string("a cost rose");
    }
    return std::string();
  });
}

}  // namespace
}  // namespace transducer::testing
