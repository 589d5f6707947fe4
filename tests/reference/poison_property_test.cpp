// SPDX-License-Identifier: Apache-2.0
//
// NaN and +inf: where an arc on some path reads one, the cost of that utterance and all gradients
// of its valid nodes are NaN; where none does, no bit of costs and gradients changes. Which arcs
// lie on a path is told by enumeration of the same lattice with all logits 0: the table, lengths,
// band and -inf masks decide it, the logits do not.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/compare.hpp"
#include "tests/support/generators.hpp"
#include "tests/support/outcome.hpp"
#include "tests/support/property.hpp"

namespace transducer::testing {
namespace {

/// Whether an arc at a node with this next label (-1: none) reads column k, itself or through Z.
bool reads(const VariantTable& bound, const Arc& arc, std::int64_t label, std::int64_t k,
           bool from_log_probs) {
  for (int i = 0; i < arc.num_columns; ++i) {
    const Column& column = arc.columns[i];
    if (column.kind == ColumnKind::fixed && column.position.offset == k) return true;
    if (column.kind == ColumnKind::label && label + column.label_offset == k) return true;
    if (column.kind == ColumnKind::log_sum &&
        group_contains(bound.groups[column.group], k, label)) {
      return true;
    }
    for (int g = 0; g < bound.num_groups; ++g) {
      const bool named = ((column.subtract | column.add) & group_bit(g)) != 0;
      const bool has_z = !from_log_probs && bound.groups[g].normaliser != Normaliser::none;
      if (named && has_z && group_contains(bound.groups[g], k, label)) return true;
    }
  }
  return false;
}

enum class Place : std::uint8_t { logits, arc_scores, start_scores, final_scores };

/// Where the poison is: an element of one array.
struct Poison {
  Place place = Place::logits;
  std::size_t index = 0;
  double value = kNaN;
};

std::vector<double>& array_of(DenseBatch& batch, Place place) {
  switch (place) {
    case Place::logits:
      return batch.logits;
    case Place::arc_scores:
      return batch.arc_scores;
    case Place::start_scores:
      return batch.start_scores;
    case Place::final_scores:
      return batch.final_scores;
  }
  return batch.logits;
}

/// Whether some path of utterance b reads element `at` (counted within the utterance).
bool is_read(DenseBatch batch, const Poison& poison, std::int64_t b, std::int64_t at) {
  std::fill(batch.logits.begin(), batch.logits.end(), 0.0);
  array_of(batch, poison.place)[poison.index] = 0.0;
  const reference::TinyLattice tiny = tiny_lattice(batch, b);
  if (tiny.frames == 0) return false;
  const std::int64_t width = poison.place == Place::logits ? batch.K : batch.A();
  const std::int64_t node = at / width;
  for (const reference::EnumeratedPath& path : reference::enumerate_paths(tiny)) {
    if (poison.place == Place::start_scores && path.start_frame == at) return true;
    if (poison.place == Place::final_scores && path.end_frame == at) return true;
    if (poison.place == Place::start_scores || poison.place == Place::final_scores) continue;
    for (const reference::PathStep& step : path.steps) {
      if (step.t * (batch.U + 1) + step.u != node) continue;
      if (poison.place == Place::arc_scores && step.arc == at % width) return true;
      if (poison.place != Place::logits) continue;
      const auto u = static_cast<std::size_t>(step.u);
      const std::int64_t label = u < tiny.labels.size() ? tiny.labels[u] : -1;
      if (reads(tiny.table, tiny.table.arcs[step.arc], label, at % width, batch.from_log_probs)) {
        return true;
      }
    }
  }
  return false;
}

/// What a poisoned utterance gives: NaN at valid places, 0 in padding.
std::vector<double> poisoned_results(const DenseBatch& batch, std::int64_t b) {
  std::vector<double> all = {kNaN};
  const std::int64_t frames = batch.frame_lengths[static_cast<std::size_t>(b)];
  const std::int64_t labels = batch.target_lengths[static_cast<std::size_t>(b)];
  const auto add_nodes = [&](std::int64_t width) {
    for (std::int64_t t = 0; t < batch.T; ++t) {
      for (std::int64_t u = 0; u <= batch.U; ++u) {
        all.insert(all.end(), static_cast<std::size_t>(width),
                   t < frames && u <= labels ? kNaN : 0.0);
      }
    }
  };
  add_nodes(batch.K);
  if (!batch.arc_scores.empty()) add_nodes(batch.A());
  for (std::int64_t t = 0; !batch.start_scores.empty() && t < batch.T; ++t) {
    all.push_back(t < frames ? kNaN : 0.0);
  }
  for (std::int64_t t = 0; !batch.final_scores.empty() && t <= batch.T; ++t) {
    all.push_back(t <= frames ? kNaN : 0.0);
  }
  return all;
}

TEST(Poison, SpoilsItsUtteranceWhereAPathReadsItAndNothingElsewhere) {
  int read = 0;
  int unread = 0;
  for_all(any_batch(), [&](DenseBatch batch) {
    Poison poison;
    const std::int64_t place = draw(0, 5);
    if (place == 3 && !batch.arc_scores.empty()) poison.place = Place::arc_scores;
    if (place == 4 && !batch.start_scores.empty()) poison.place = Place::start_scores;
    if (place == 5 && !batch.final_scores.empty()) poison.place = Place::final_scores;
    if (chance(40)) poison.value = kInf;
    const auto size = static_cast<std::int64_t>(array_of(batch, poison.place).size());
    if (size == 0) return std::string();
    poison.index = static_cast<std::size_t>(draw(0, size - 1));
    const std::int64_t width = size / batch.B;
    const std::int64_t victim = static_cast<std::int64_t>(poison.index) / width;
    const std::int64_t at = static_cast<std::int64_t>(poison.index) % width;

    // Poison wins over -inf, be it all around.
    if (poison.place == Place::logits && chance(40)) {
      const auto row =
          poison.index / static_cast<std::size_t>(batch.K) * static_cast<std::size_t>(batch.K);
      std::fill_n(batch.logits.begin() + static_cast<std::ptrdiff_t>(row), batch.K, -kInf);
    }
    // An arc that a mask forbade exists once its score is NaN, so the plain run has it open.
    double& element = array_of(batch, poison.place)[poison.index];
    if (poison.place != Place::logits && element == -kInf) element = 0.0;
    const Outcome plain = batch.run();
    const bool spoils = is_read(batch, poison, victim, at);
    (spoils ? read : unread) += 1;
    element = poison.value;
    const Outcome poisoned = batch.run();
    std::string wrong;
    for (std::int64_t b = 0; b < batch.B; ++b) {
      wrong += bit_difference(
          spoils && b == victim ? "poisoned utterance" : "spared utterance",
          results_of(poisoned, b, batch.B),
          spoils && b == victim ? poisoned_results(batch, b) : results_of(plain, b, batch.B));
    }
    return wrong;
  });
  EXPECT_GT(read, num_cases() / 10);
  EXPECT_GT(unread, num_cases() / 10);
}

TEST(Poison, WinsOverZeroInfinity) {
  DenseBatch batch;
  batch.variant = rnnt(position(0));
  batch.logits = {kNaN, -kInf};
  batch.zero_infinity = true;
  EXPECT_TRUE(std::isnan(batch.run().costs[0]));
}

}  // namespace
}  // namespace transducer::testing
