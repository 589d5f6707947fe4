// SPDX-License-Identifier: Apache-2.0
//
// Runs a property over TX_CASES random batches (default 200), and shows a failing batch in words.
// A property returns an empty string where it holds, else the sentence that says what is wrong.
#pragma once

#include <cstdlib>
#include <iostream>
#include <ostream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "tests/support/fixture.hpp"
#include "tests/support/generators.hpp"
#include "tests/support/tiny.hpp"

namespace transducer::testing {

inline int num_cases() {
  const char* text = std::getenv("TX_CASES");
  return text != nullptr ? std::stoi(text) : 200;
}

template <class T>
void show_numbers(std::ostream& out, const char* name, const std::vector<T>& values) {
  if (values.empty()) return;
  out << name << " {";
  for (const T& value : values) out << " " << value;
  out << " }\n";
}

/// RapidCheck prints counterexamples through this.
// NOLINTNEXTLINE(readability-identifier-naming): the name is RapidCheck's
inline void showValue(const DenseBatch& batch, std::ostream& out) {
  const VariantTable& v = batch.variant;
  out << "\nB " << batch.B << " T " << batch.T << " U " << batch.U << " K " << batch.K
      << " from_log_probs " << batch.from_log_probs << ", variant " << v.name << " heads "
      << v.heads << "\n";
  const auto place = [](Position p) {
    return (p.from_vocabulary ? "V+" : "") + std::to_string(p.offset);
  };
  for (int g = 0; g < v.num_groups; ++g) {
    const Group& group = v.groups[g];
    out << "group " << g << " [" << place(group.begin) << ", " << place(group.end)
        << ") normaliser " << int(group.normaliser) << " excludes "
        << (group.exclude_fixed ? place(group.excluded) : "-")
        << (group.exclude_label ? " label" : "") << " clamp " << group.clamp << "\n";
  }
  for (int a = 0; a < v.num_arcs; ++a) {
    const Arc& arc = v.arcs[a];
    out << "arc " << a << " (" << arc.dt << "," << arc.du << ") may_finish " << arc.may_finish
        << " constant " << arc.constant.value << " log_v1 " << arc.constant.log_v1 << " bonus "
        << arc.frame_bonus;
    for (int i = 0; i < arc.num_columns; ++i) {
      const Column& c = arc.columns[i];
      out << "; column kind " << int(c.kind) << " at " << place(c.position) << " offset "
          << c.label_offset << " group " << c.group << " subtract " << int(c.subtract) << " add "
          << int(c.add) << " scale " << c.grad_scale;
    }
    out << "\n";
  }
  show_numbers(out, "frame_lengths", batch.frame_lengths);
  show_numbers(out, "target_lengths", batch.target_lengths);
  show_numbers(out, "targets", batch.targets);
  show_numbers(out, "logits", batch.logits);
  show_numbers(out, "arc_scores", batch.arc_scores);
  show_numbers(out, "start_scores", batch.start_scores);
  show_numbers(out, "final_scores", batch.final_scores);
  show_numbers(out, "band", batch.band);
}

/// Fails the running test unless `property(batch)` is empty for num_cases() batches, and unless
/// really so many were run.
template <class Property>
void for_all(const rc::Gen<DenseBatch>& batches, Property&& property) {
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  // The same batches on every run; RC_PARAMS="seed=..." draws others.
  if (std::getenv("RC_PARAMS") == nullptr) params.seed = 1;
  params.maxSuccess = num_cases();
  int runs = 0;
  const auto testable = [&] {
    ++runs;
    const std::string wrong = property(*batches);
    if (!wrong.empty()) RC_FAIL(wrong);
  };
  rc::detail::TestMetadata metadata;
  metadata.id = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  metadata.description = metadata.id;
  const rc::detail::TestResult result = rc::detail::checkTestable(testable, metadata, params);
  std::ostringstream text;
  rc::detail::printResultMessage(result, text);
  ASSERT_TRUE(result.is<rc::detail::SuccessResult>()) << text.str();
  ASSERT_EQ(runs, num_cases());
}

}  // namespace transducer::testing
