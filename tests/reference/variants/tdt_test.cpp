// SPDX-License-Identifier: Apache-2.0
//
// TDT by hand: T = 2, U = 1, symbols {0, 1, blank = 2}, label 1, durations [2, 1, 0] in columns 3,
// 4, 5.
#include "tests/support/literals.hpp"

namespace transducer::testing {
namespace {

const std::vector<std::int64_t> kDurations = {2, 1, 0};

// Node weights [symbols | durations 2, 1, 0] and the two sums of each node:
const std::vector<std::vector<double>> kNodes = {{1, 2, 1, 1, 2, 1},   // (0,0) /4, /4
                                                 {1, 1, 2, 3, 1, 4},   // (0,1) /4, /8
                                                 {2, 1, 2, 1, 1, 3},   // (1,0) /5, /5
                                                 {3, 1, 4, 1, 1, 2}};  // (1,1) /8, /4

// label 0, blank 1, blank 1: (2/4 * 1/4) (2/4 * 1/8) (4/8 * 1/4)  =  25 / 25600
// label 0, blank 2:          (2/4 * 1/4) (2/4 * 3/8)              = 600
// label 1, blank 1:          (2/4 * 2/4) (4/8 * 1/4)              = 800
// blank 1, label 0, blank 1: (1/4 * 2/4) (1/5 * 3/5) (4/8 * 1/4)  =  48
constexpr double kAll = 25 + 600 + 800 + 48;  // 1473

std::vector<double> hand_gradient() {
  const double end = 873 / kAll;    // occupancy of (1,1): 25 + 800 + 48
  const double first = 625 / kAll;  // of (0,1): 25 + 600
  const double late = 48 / kAll;    // of (1,0)
  return {1.0 / 4,
          1.0 / 2 - 1425 / kAll,
          1.0 / 4 - 48 / kAll,  // (0,0), occupancy 1
          1.0 / 4,
          1.0 / 2 - 848 / kAll,
          1.0 / 4 - 625 / kAll,
          first / 4,
          first / 4,
          first / 2 - first,  // (0,1)
          first * 3 / 8 - 600 / kAll,
          first / 8 - 25 / kAll,
          first / 2,
          late * 2 / 5,
          late / 5 - late,
          late * 2 / 5,  // (1,0)
          late / 5,
          late / 5,
          late * 3 / 5 - late,
          end * 3 / 8,
          end / 8,
          end / 2 - end,  // (1,1)
          end / 4,
          end / 4 - end,
          end / 2};
}

// T = 3 and every arc masked but label 2 at (0,0) and blank 1 at (2,1): one path of weight
// (2/4 * 1/4) (4/8 * 1/4), so each gradient is p - 1[read].
void check_long_label(const VariantTable& table, Mismatches& m) {
  const std::vector<double>& first = kNodes[0];
  const std::vector<double>& last = kNodes[3];
  DenseBatch batch = lattice_of(table, 3, 1, {first, last, last, last, last, last});
  batch.arc_scores.assign(3 * 2 * 5, -kInf);
  batch.arc_scores[4] = 0;                // node (0,0), label(2,1)
  batch.arc_scores[(2 * 2 + 1) * 5] = 0;  // node (2,1), blank(1,0)
  Outcome outcome = batch.run();
  m.near("likelihood of a long label", std::exp(-outcome.costs[0]), 1.0 / 64);
  const std::vector<double> begin(outcome.logits_gradient.begin(),
                                  outcome.logits_gradient.begin() + 6);
  m.near("its gradient", begin, {1.0 / 4, -1.0 / 2, 1.0 / 4, 1.0 / 4 - 1, 1.0 / 2, 1.0 / 4});
}

void check(const VariantTable& table, Mismatches& m) {
  m.equal("name", std::string(table.name), std::string("tdt"));
  m.equal("arcs", describe_arcs(table),
          std::string("blank(1,0)! blank(2,0)! label(0,1) label(1,1) label(2,1)"));
  const Outcome plain = lattice_of(table, 2, 1, kNodes).run();
  m.near("cost", plain.costs[0], -std::log(kAll / 25600));
  m.near("gradient", plain.logits_gradient, hand_gradient());

  m.equal("durations exclude the label", table.groups[1].exclude_label, false);

  // Symbol columns are clamped, duration columns are not.
  DenseBatch clamped = lattice_of(table, 2, 1, kNodes);
  clamped.clamp = 0.05;
  std::vector<double> expected = hand_gradient();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (i % 6 < 3) expected[i] = std::fmin(std::fmax(expected[i], -0.05), 0.05);
  }
  m.near("clamped gradient", clamped.run().logits_gradient, expected);
  check_long_label(table, m);
}

// The paper's reading adds label 2 at (0,0), 1/2 * 1/4 = 3200 / 25600, and blank 1, label 1,
// (1/4 * 2/4) (1/5 * 1/5) = 128 / 25600.
void check_final_label(const VariantTable& table, Mismatches& m) {
  m.equal("arcs", describe_arcs(table),
          std::string("blank(1,0)! blank(2,0)! label(0,1)! label(1,1)! label(2,1)!"));
  m.near("likelihood", likelihood(lattice_of(table, 2, 1, kNodes)), (kAll + 3200 + 128) / 25600);
}

const bool kRegistered = register_literals({"tdt", {{"durations", kDurations}}, check});
const bool kFinalRegistered = register_literals(
    {"tdt", {{"durations", kDurations}, {"final_label", true}}, check_final_label});

}  // namespace
}  // namespace transducer::testing
