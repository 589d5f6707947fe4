// SPDX-License-Identifier: Apache-2.0
//
// How often random batches are feasible and use each feature, so that a generator that no longer
// draws something fails a test instead of testing nothing.
#pragma once

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reference/enumerate.hpp"
#include "tests/support/fixture.hpp"
#include "tests/support/property.hpp"

namespace transducer::testing {

class FeatureCounts {
 public:
  /// Counts a batch; it is feasible if an utterance of at least one frame has a path.
  void count(const DenseBatch& batch) {
    ++batches_;
    bool feasible = false;
    bool infeasible = false;
    for (std::int64_t b = 0; b < batch.B; ++b) {
      const auto tiny = tiny_lattice(batch, b);
      const bool has_path = reference::enumerated_cost(tiny) < kInf;
      feasible = feasible || (has_path && tiny.frames > 0);
      infeasible = infeasible || !has_path;
    }
    add("feasible", feasible);
    add("some utterance infeasible", infeasible);
    count_request(batch);
    count_table(batch.variant);
  }

  /// Percent of the batches.
  double share(const std::string& feature) const {
    const auto found = counts_.find(feature);
    return found == counts_.end() ? 0.0 : 100.0 * found->second / batches_;
  }

  void print(const std::string& what) const {
    std::ostringstream line;
    line << std::fixed << std::setprecision(0);
    for (const auto& [feature, unused] : counts_) {
      line << (line.tellp() > 0 ? ", " : "") << feature << " " << share(feature) << " %";
    }
    // GoogleTest writes to the same stream; a line of its own keeps `note: ` in front.
    std::cout << "note: " << batches_ << " batches of " << what << ": " << line.str() << '\n'
              << std::flush;
  }

  void expect_each_above(double percent) const {
    if (batches_ < 100) return;  // too few to say
    for (const auto& [feature, unused] : counts_) {
      EXPECT_GT(share(feature), percent) << feature << " is hardly ever drawn";
    }
  }

 private:
  void add(const std::string& feature, bool present) { counts_[feature] += present ? 1 : 0; }

  void count_request(const DenseBatch& batch) {
    const auto has_minus_inf = [](const std::vector<double>& values) {
      return std::find(values.begin(), values.end(), -kInf) != values.end();
    };
    add("logits of -inf", has_minus_inf(batch.logits));
    add("from_log_probs", batch.from_log_probs);
    add("arc scores", !batch.arc_scores.empty());
    add("mask", has_minus_inf(batch.arc_scores));
    add("band", !batch.band.empty());
    add("start scores", !batch.start_scores.empty());
    add("final scores", !batch.final_scores.empty());
    add("T = 0", std::count(batch.frame_lengths.begin(), batch.frame_lengths.end(), 0) > 0);
    add("U = 0", std::count(batch.target_lengths.begin(), batch.target_lengths.end(), 0) > 0);
    bool ragged = false;
    bool label_is_blank = false;
    const VariantTable bound = bind_table(batch.variant, batch.K, "test");
    for (std::int64_t b = 0; b < batch.B; ++b) {
      const auto i = static_cast<std::size_t>(b);
      ragged = ragged || batch.frame_lengths[i] < batch.T || batch.target_lengths[i] < batch.U;
      for (std::int64_t u = 0; u < batch.target_lengths[i]; ++u) {
        const std::int64_t label = batch.targets[static_cast<std::size_t>(b * batch.U + u)];
        for (int a = 0; a < bound.num_arcs; ++a) {
          const Column& first = bound.arcs[a].columns[0];
          label_is_blank =
              label_is_blank || (bound.arcs[a].du == 0 && bound.arcs[a].num_columns > 0 &&
                                 first.kind == ColumnKind::fixed && first.position.offset == label);
        }
      }
    }
    add("ragged", ragged);
    add("label equal to blank", label_is_blank);
  }

  void count_table(const VariantTable& table) {
    std::map<std::string, bool> seen = {
        {"log-sum column", false}, {"label offset", false},   {"two columns", false},
        {"subtracts Z", false},    {"adds Z", false},         {"symbolic column", false},
        {"grad_scale", false},     {"constant", false},       {"log(V - 1)", false},
        {"frame bonus", false},    {"long dt", false},        {"label may finish", false},
        {"softmax", false},        {"bernoulli", false},      {"no normaliser", false},
        {"excludes fixed", false}, {"excludes label", false}, {"excludes both", false},
        {"clamp = false", false},  {"symbolic group", false}};
    for (int a = 0; a < table.num_arcs; ++a) {
      const Arc& arc = table.arcs[a];
      seen["two columns"] |= arc.num_columns == 2;
      seen["constant"] |= arc.constant.value != 0.0;
      seen["log(V - 1)"] |= arc.constant.log_v1 != 0.0;
      seen["frame bonus"] |= arc.frame_bonus != 0.0;
      seen["long dt"] |= arc.dt > 1;
      seen["label may finish"] |= arc.du == 1 && arc.may_finish;
      for (int i = 0; i < arc.num_columns; ++i) {
        const Column& column = arc.columns[i];
        seen["log-sum column"] |= column.kind == ColumnKind::log_sum;
        seen["label offset"] |= column.label_offset != 0;
        seen["subtracts Z"] |= column.subtract != 0;
        seen["adds Z"] |= column.add != 0;
        seen["symbolic column"] |=
            column.kind == ColumnKind::fixed && column.position.from_vocabulary;
        seen["grad_scale"] |= column.grad_scale != 1.0;
      }
    }
    for (int g = 0; g < table.num_groups; ++g) {
      const Group& group = table.groups[g];
      seen["softmax"] |= group.normaliser == Normaliser::softmax;
      seen["bernoulli"] |= group.normaliser == Normaliser::bernoulli;
      seen["no normaliser"] |= group.normaliser == Normaliser::none;
      seen["excludes fixed"] |= group.exclude_fixed;
      seen["excludes label"] |= group.exclude_label;
      seen["excludes both"] |= group.exclude_fixed && group.exclude_label;
      seen["clamp = false"] |= !group.clamp;
      seen["symbolic group"] |= group.begin.from_vocabulary || group.end.from_vocabulary;
    }
    for (const auto& [feature, present] : seen) add(feature, present);
    add("groups " + std::to_string(table.num_groups), true);
  }

  int batches_ = 0;
  std::map<std::string, int> counts_;
};

}  // namespace transducer::testing
