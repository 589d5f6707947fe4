// SPDX-License-Identifier: Apache-2.0
//
// What has to hold on every rank of a communicator: shared by the tests with threads and with MPI.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/sharded.hpp"

namespace transducer::testing {

/// The bound on |dW sharded - dW whole| that distributed/loss.hpp states: 2 N u sum |g h|. RNN-T's rows have
/// sum |g| over nodes at most (T + U) max(scale) each for an utterance, and |h| <= 1 for tanh, over keep for dropout.
inline double weight_bound(const ShardBatch& batch, const ShardCase& settings) {
  double mass = 0.0;
  std::int64_t rows = 0;
  const std::vector<std::int64_t> each = batch.rows();
  for (std::size_t b = 0; b < each.size(); ++b) {
    rows += each[b];
    const double upstream = settings.reduction == Reduction::none ? batch.upstream()[b] : 0.75;
    mass += upstream * static_cast<double>(batch.frames()[b] + batch.labels()[b]);
  }
  const double unit = settings.dtype == DType::float64 ? 0x1p-53 : 0x1p-24;
  return 2.0 * static_cast<double>(rows) * unit * mass / (1.0 - settings.dropout);
}

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_number(a[i], b[i])) largest = std::max(largest, std::abs(a[i] - b[i]));
    if (std::isnan(a[i]) != std::isnan(b[i])) return std::numeric_limits<double>::infinity();
  }
  return largest;
}

/// One case: this rank's part against the whole batch on one rank.
inline void expect_part_equals_whole(const ShardCase& settings,
                                     distributed::Communicator& communicator,
                                     const std::string& what) {
  SCOPED_TRACE(what + ", " + std::to_string(communicator.size()) + " ranks");
  const ShardBatch batch(settings);
  const ShardOutcome whole = batch.whole();
  const std::vector<std::int64_t> mine =
      utterances_of(batch, communicator.rank(), communicator.size());
  const ShardOutcome part = batch.part(mine, communicator);
  EXPECT_TRUE(same_number(part.total, whole.total)) << part.total << " " << whole.total;
  EXPECT_TRUE(same_numbers(part.costs, rows_of(whole.costs, mine, 1)));
  EXPECT_TRUE(same_numbers(part.first, rows_of(whole.first, mine, batch.first_size())));
  if (!settings.joint) return;
  EXPECT_TRUE(same_numbers(part.second, rows_of(whole.second, mine, batch.second_size())));
  distributed::SingleProcess alone;
  std::vector<std::int64_t> all;
  for (std::int64_t b = 0; b < ShardBatch::B; ++b) all.push_back(b);
  if (settings.reproducible) {
    const ShardOutcome one = batch.part(all, alone);
    EXPECT_TRUE(same_numbers(part.weight, one.weight));
    EXPECT_TRUE(same_numbers(part.bias, one.bias));
  }
  const double bound = weight_bound(batch, settings);
  EXPECT_LE(largest_difference(part.weight, whole.weight), bound);
  EXPECT_LE(largest_difference(part.bias, whole.bias), bound);
}

/// Every source, type, reduction and way to sum.
inline void expect_parts_equal_whole(distributed::Communicator& communicator) {
  for (const Reduction reduction : {Reduction::none, Reduction::sum, Reduction::mean,
                                    Reduction::mean_target, Reduction::mean_frame}) {
    const std::string name = "reduction " + std::to_string(static_cast<int>(reduction));
    expect_part_equals_whole({.reduction = reduction}, communicator, name + ", dense");
    expect_part_equals_whole({.dtype = DType::float32, .reduction = reduction}, communicator,
                             name + ", dense float32");
    for (const bool reproducible : {false, true}) {
      expect_part_equals_whole(
          {.joint = true, .reduction = reduction, .reproducible = reproducible}, communicator,
          name + ", joint");
      expect_part_equals_whole({.joint = true,
                                .dtype = DType::float32,
                                .reduction = reduction,
                                .reproducible = reproducible,
                                .dropout = 0.25},
                               communicator, name + ", joint float32 with dropout");
    }
  }
  for (const bool joint : {false, true}) {
    expect_part_equals_whole({.joint = joint, .poisoned = 2}, communicator, "NaN");
    expect_part_equals_whole({.joint = joint, .reproducible = true, .poisoned = 2}, communicator,
                             "NaN, reproducible");
  }
}

}  // namespace transducer::testing
