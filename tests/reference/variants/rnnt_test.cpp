// SPDX-License-Identifier: Apache-2.0
//
// RNN-T by hand: T = 2, U = 1, symbols {0, 1, blank = 2}, label 1.
#include "tests/support/literals.hpp"

namespace transducer::testing {
namespace {

// Node weights and their sums:   (0,0) /4    (0,1) /4    (1,0) /5    (1,1) /8
const std::vector<std::vector<double>> kNodes = {{1, 2, 1}, {1, 1, 2}, {2, 1, 2}, {3, 1, 4}};

void check(const VariantTable& table, Mismatches& m) {
  m.equal("name", std::string(table.name), std::string("rnnt"));
  m.equal("arcs", describe_arcs(table), std::string("blank(1,0)! label(0,1)"));

  // label, blank, blank: 2/4 * 2/4 * 4/8 = 1/8        blank, label, blank: 1/4 * 1/5 * 4/8 = 1/40
  // likelihood 1/8 + 1/40 = 3/20; the paths' shares are 5/6 and 1/6.
  const Outcome plain = lattice_of(table, 2, 1, kNodes).run();
  m.near("cost", plain.costs[0], -std::log(3.0 / 20));
  m.near("arc_posterior", plain.arc_posterior, {1.0 / 6, 5.0 / 6, 5.0 / 6, 0, 0, 1.0 / 6, 1, 0});
  m.near("weight of the blank at (0,0)", plain.arc_weights[0], std::log(1.0 / 4));
  // d cost / d x = p * occupancy - gamma
  const std::vector<double> gradient = {1.0 / 4,
                                        1.0 / 2 - 5.0 / 6,
                                        1.0 / 4 - 1.0 / 6,  // (0,0), occupancy 1
                                        5.0 / 24,
                                        5.0 / 24,
                                        5.0 / 12 - 5.0 / 6,  // (0,1), occupancy 5/6
                                        2.0 / 5 / 6,
                                        1.0 / 5 / 6 - 1.0 / 6,
                                        2.0 / 5 / 6,  // (1,0), occupancy 1/6
                                        3.0 / 8,
                                        1.0 / 8,
                                        1.0 / 2 - 1};  // (1,1), occupancy 1
  m.near("gradient", plain.logits_gradient, gradient);

  // Every column is clamped.
  DenseBatch clamped = lattice_of(table, 2, 1, kNodes);
  clamped.clamp = 0.1;
  std::vector<double> expected = gradient;
  for (double& g : expected) g = g > 0.1 ? 0.1 : g < -0.1 ? -0.1 : g;
  m.near("clamped gradient", clamped.run().logits_gradient, expected);
}

const bool kRegistered = register_literals({"rnnt", {}, check});

}  // namespace
}  // namespace transducer::testing
