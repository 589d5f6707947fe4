// SPDX-License-Identifier: Apache-2.0
//
// Monotonic RNN-T by hand: T = 2, U = 1, symbols {0, 1, blank = 2}, label 1.
#include "tests/support/literals.hpp"

namespace transducer::testing {
namespace {

// Node weights and their sums:   (0,0) /4    (0,1) /4    (1,0) /5    (1,1) /8
const std::vector<std::vector<double>> kNodes = {{1, 2, 1}, {1, 1, 2}, {2, 1, 2}, {3, 1, 4}};

void check(const VariantTable& table, Mismatches& m) {
  m.equal("name", std::string(table.name), std::string("monotonic"));
  m.equal("arcs", describe_arcs(table), std::string("blank(1,0)! label(1,1)!"));

  // label, blank: 2/4 * 4/8 = 1/4        blank, label: 1/4 * 1/5 = 1/20
  // likelihood 3/10; shares 5/6 and 1/6. Node (0,1) is on no path.
  const Outcome plain = lattice_of(table, 2, 1, kNodes).run();
  m.near("cost", plain.costs[0], -std::log(3.0 / 10));
  m.near("gradient", plain.logits_gradient,
         {1.0 / 4, 1.0 / 2 - 5.0 / 6, 1.0 / 4 - 1.0 / 6,    // (0,0), occupancy 1
          0, 0, 0,                                          // (0,1)
          2.0 / 5 / 6, 1.0 / 5 / 6 - 1.0 / 6, 2.0 / 5 / 6,  // (1,0), occupancy 1/6
          5.0 / 16, 5.0 / 48, 5.0 / 12 - 5.0 / 6});         // (1,1), occupancy 5/6
  DenseBatch clamped = lattice_of(table, 2, 1, kNodes);
  clamped.clamp = 0.25;
  m.near("clamped gradient", clamped.run().logits_gradient,
         {0.25, -0.25, 1.0 / 12, 0, 0, 0, 1.0 / 15, -2.0 / 15, 1.0 / 15, 0.25, 5.0 / 48, -0.25});
}

// Without final labels the last frame must be a blank: only label, blank is left.
void check_blank_at_the_end(const VariantTable& table, Mismatches& m) {
  m.equal("arcs", describe_arcs(table), std::string("blank(1,0)! label(1,1)"));
  m.near("likelihood", likelihood(lattice_of(table, 2, 1, kNodes)), 1.0 / 4);
}

const bool kRegistered = register_literals({"monotonic", {}, check});
const bool kBlankRegistered =
    register_literals({"monotonic", {{"final_label", false}}, check_blank_at_the_end});

}  // namespace
}  // namespace transducer::testing
