// SPDX-License-Identifier: Apache-2.0
//
// Multi-blank by hand. Big blank i is column blank - 1 - i.
#include "tests/support/literals.hpp"

namespace transducer::testing {
namespace {

using Durations = std::vector<std::int64_t>;

// durations [2]; symbols {0, 1, blank of 2 frames = 2, blank = 3}, label 1, T = 2, U = 1.
// Node weights and their sums:   (0,0) /8      (0,1) /8      (1,0) /5      (1,1) /8
const std::vector<std::vector<double>> kNodes = {
    {1, 2, 3, 2}, {1, 1, 4, 2}, {2, 1, 1, 1}, {3, 1, 2, 2}};

void check(const VariantTable& table, Mismatches& m) {
  m.equal("name", std::string(table.name), std::string("multi_blank"));
  m.equal("arcs", describe_arcs(table), std::string("blank(1,0)! blank(2,0)! label(0,1)"));

  // label, blank, blank: 2/8 * 2/8 * 2/8 = 5/320      label, big blank: 2/8 * 4/8 = 40/320
  // blank, label, blank: 2/8 * 1/5 * 2/8 = 4/320      a big blank at (0,0) misses the label
  const Outcome plain = lattice_of(table, 2, 1, kNodes).run();
  m.near("cost", plain.costs[0], -std::log(49.0 / 320));
  m.near("weight of the blank at (0,0)", plain.arc_weights[0], std::log(2.0 / 8));
  m.near("gradient", plain.logits_gradient,
         {1.0 / 8, 1.0 / 4 - 45.0 / 49, 3.0 / 8, 1.0 / 4 - 4.0 / 49,             // (0,0), 1
          45.0 / 392, 45.0 / 392, 45.0 / 98 - 40.0 / 49, 45.0 / 196 - 5.0 / 49,  // (0,1), 45/49
          8.0 / 245, 4.0 / 245 - 4.0 / 49, 4.0 / 245, 4.0 / 245,                 // (1,0), 4/49
          27.0 / 392, 9.0 / 392, 9.0 / 196, 9.0 / 196 - 9.0 / 49});              // (1,1), 9/49
  DenseBatch clamped = lattice_of(table, 2, 1, kNodes);
  clamped.clamp = 0.3;
  m.near("clamped gradient of (0,0)", clamped.run().logits_gradient[1], -0.3);
  m.near("clamped gradient of a big blank", clamped.run().logits_gradient[2], 0.3);
}

// durations [3, 2]: column 2 is the blank of 3 frames, column 1 that of 2; arcs go by duration.
void check_unsorted(const VariantTable& table, Mismatches& m) {
  m.equal("arcs", describe_arcs(table),
          std::string("blank(1,0)! blank(2,0)! blank(3,0)! label(0,1)"));
  // T = 3, U = 0; sums 8, 8, 4. 3: 3/8   2+1: 2/8 * 1/4   1+2: 2/8 * 4/8   1+1+1: 2/8 * 2/8 * 1/4
  const Outcome plain = lattice_of(table, 3, 0, {{1, 2, 3, 2}, {1, 4, 1, 2}, {1, 1, 1, 1}}).run();
  m.near("likelihood", std::exp(-plain.costs[0]), (24.0 + 4 + 8 + 1) / 64);
  m.near("arc_posterior", plain.arc_posterior,
         {9.0 / 37, 4.0 / 37, 24.0 / 37, 0, 1.0 / 37, 8.0 / 37, 0, 0, 5.0 / 37, 0, 0, 0});
}

const bool kRegistered = register_literals({"multi_blank", {{"durations", Durations{2}}}, check});
const bool kUnsortedRegistered =
    register_literals({"multi_blank", {{"durations", Durations{3, 2}}}, check_unsorted});

}  // namespace
}  // namespace transducer::testing
