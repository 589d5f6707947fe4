// SPDX-License-Identifier: Apache-2.0
//
// Identities between named variants: where one reduces to another, both give the same costs and
// gradients, on random batches.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "reference/variants/all.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/generators.hpp"
#include "tests/support/property.hpp"

namespace transducer::testing {
namespace {

/// A batch for logits with `columns` columns and blank 0, over `table`.
rc::Gen<DenseBatch> batch_over(const VariantTable& table, std::int64_t columns) {
  return rc::gen::resize(rc::kNominalSize, rc::gen::exec([=] {
                           DenseBatch batch;
                           batch.variant = table;
                           batch.K = columns;
                           fill_batch(batch, {});
                           batch.arc_scores.clear();  // of another number of arcs
                           return batch;
                         }));
}

std::string same_costs_and_gradients(DenseBatch got, DenseBatch want) {
  const Outcome a = got.run();
  const Outcome b = want.run();
  return difference("costs", a.costs, b.costs, 1e-12) +
         difference("gradient", a.logits_gradient, b.logits_gradient, 1e-12);
}

/// Whether a batch has a cost worth comparing.
bool is_feasible(DenseBatch batch) {
  const Outcome o = batch.run();
  return std::any_of(o.costs.begin(), o.costs.end(),
                     [](double cost) { return cost > 0.0 && cost < kInf; });
}

/// A head of one column has log q = 0, and a duration of 1 moves as the monotonic transducer does.
TEST(Variants, TdtWithTheOneDurationOneIsMonotonic) {
  int feasible = 0;
  for (const bool final_label : {false, true}) {
    for_all(batch_over(tdt({1}, position(0), final_label), 5), [&](DenseBatch batch) {
      batch.from_log_probs = false;
      feasible += is_feasible(batch);
      DenseBatch plain = batch;
      plain.variant = monotonic(position(0), final_label);
      plain.K = 4;
      plain.logits.clear();
      for (std::size_t i = 0; i < batch.logits.size(); ++i) {
        if (i % 5 != 4) plain.logits.push_back(batch.logits[i]);
        if (i % 5 == 4 && batch.logits[i] == -kInf) batch.logits[i] = 0.0;
      }
      const Outcome a = batch.run();
      const Outcome b = plain.run();
      std::vector<double> gradient;
      std::string wrong;
      for (std::size_t i = 0; i < a.logits_gradient.size(); ++i) {
        if (i % 5 != 4) gradient.push_back(a.logits_gradient[i]);
        if (i % 5 == 4) {
          wrong += difference("gradient of the head", a.logits_gradient[i], 0.0, 1e-12);
        }
      }
      return wrong + difference("costs", a.costs, b.costs, 1e-12) +
             difference("gradient", gradient, b.logits_gradient, 1e-12);
    });
  }
  EXPECT_GT(feasible, num_cases() / 2);
}

/// Big blanks whose columns are -inf are never taken and weigh nothing in the softmax.
TEST(Variants, MultiBlankWithoutItsBigBlanksIsRnnt) {
  int feasible = 0;
  const VariantTable table =
      make_variant(find_variant("multi_blank"),
                   {{"durations", std::vector<std::int64_t>{2, 3}}, {"blank", std::int64_t{2}}});
  for_all(batch_over(table, 6), [&](DenseBatch batch) {
    for (std::size_t i = 0; i < batch.logits.size(); ++i) {
      if (i % 6 < 2) batch.logits[i] = -kInf;  // columns 1 and 0
    }
    feasible += is_feasible(batch);
    DenseBatch plain = batch;
    plain.variant = rnnt(position(2));
    return same_costs_and_gradients(std::move(batch), std::move(plain));
  });
  EXPECT_GT(feasible, num_cases() / 4);
}

/// Skip arcs that a mask forbids leave RNN-T.
TEST(Variants, StarBypassAndTargetRobustWithoutTheirSkipsAreRnnt) {
  const VariantTable tables[] = {star(-1.0, position(0)), bypass(-1.0, position(0), "sumexcl"),
                                 bypass(-0.5, position(0), "mean"),
                                 target_robust(-1.0, -2.0, position(0), "sum")};
  for (const VariantTable& table : tables) {
    int feasible = 0;
    for_all(batch_over(table, 4), [&](DenseBatch batch) {
      DenseBatch plain = batch;
      plain.variant = rnnt(position(0));
      for (std::int64_t i = 0; i < batch.B * batch.T * (batch.U + 1); ++i) {
        for (int a = 0; a < table.num_arcs; ++a) batch.arc_scores.push_back(a < 2 ? 0.0 : -kInf);
      }
      feasible += is_feasible(batch);
      return same_costs_and_gradients(std::move(batch), std::move(plain));
    });
    EXPECT_GT(feasible, num_cases() / 4) << table.name;
  }
}

/// HAT's blank and labels are RNN-T's if the blank logit is taken against the labels' log-sum:
/// sigmoid(x_blank - Z_labels) is then the softmax.
TEST(Variants, HatOnShiftedBlanksIsRnnt) {
  int feasible = 0;
  for_all(batch_over(rnnt(position(0)), 4), [&](DenseBatch batch) {
    batch.from_log_probs = false;
    for (double& logit : batch.logits) logit = std::max(logit, -4.0);
    for (std::int64_t& target : batch.targets) target = std::max<std::int64_t>(target, 1);
    feasible += is_feasible(batch);
    DenseBatch shifted = batch;
    shifted.variant = hat(position(0));
    for (std::size_t i = 0; i < batch.logits.size(); i += 4) {
      double sum = 0.0;
      for (std::size_t k = 1; k < 4; ++k) sum += std::exp(batch.logits[i + k]);
      shifted.logits[i] -= std::log(sum);
    }
    return difference("costs", shifted.run().costs, batch.run().costs, 1e-12);
  });
  EXPECT_GT(feasible, num_cases() / 4);
}

/// FastEmit leaves the cost alone; sigma costs sigma for each symbol; the delay penalty is a score.
TEST(Variants, KnobsAreArcScores) {
  int feasible = 0;
  for_all(batch_over(rnnt(position(0)), 4), [&](DenseBatch batch) {
    feasible += is_feasible(batch);
    DenseBatch knobs = batch;
    knobs.variant = with_sigma(with_delay_penalty(with_fastemit(batch.variant, 0.75), 0.25), 0.125);
    for (std::int64_t b = 0; b < batch.B; ++b) {
      const auto frames = static_cast<double>(batch.frame_lengths[static_cast<std::size_t>(b)]);
      for (std::int64_t t = 0; t < batch.T; ++t) {
        for (std::int64_t u = 0; u <= batch.U; ++u) {
          batch.arc_scores.push_back(-0.125);
          batch.arc_scores.push_back(-0.125 +
                                     0.25 * ((frames - 1.0) / 2.0 - static_cast<double>(t)));
        }
      }
    }
    return difference("costs", knobs.run().costs, batch.run().costs, 1e-12);
  });
  EXPECT_GT(feasible, num_cases() / 4);
}

}  // namespace
}  // namespace transducer::testing
