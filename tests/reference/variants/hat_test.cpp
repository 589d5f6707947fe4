// SPDX-License-Identifier: Apache-2.0
//
// HAT by hand: T = 2, U = 1, symbols {0, blank = 1, 2}, label 2. A blank weight w gives b = w / (1
// + w).
#include "tests/support/literals.hpp"

namespace transducer::testing {
namespace {

const std::vector<std::vector<double>> kNodes = {
    {1, 1, 3},   // (0,0): b = 1/2, p(label) = 3/4, so the label arc has 1/2 * 3/4 = 3/8
    {1, 3, 1},   // (0,1): b = 3/4
    {2, 3, 2},   // (1,0): b = 3/4, label arc 1/4 * 1/2 = 1/8
    {1, 1, 1}};  // (1,1): b = 1/2

void check(const VariantTable& table, Mismatches& m) {
  m.equal("name", std::string(table.name), std::string("hat"));
  m.equal("arcs", describe_arcs(table), std::string("blank(1,0)! label(0,1)"));

  // label, blank, blank: 3/8 * 3/4 * 1/2 = 9/64      blank, label, blank: 1/2 * 1/8 * 1/2 = 2/64
  const Outcome plain = lattice_of(table, 2, 1, kNodes, 2).run();
  m.near("cost", plain.costs[0], -std::log(11.0 / 64));
  m.near("weight of the blank at (0,0)", plain.arc_weights[0], std::log(1.0 / 2));
  // d log b / dx = 1 - b and d log(1 - b) / dx = -b at the blank; labels: gamma (p - 1[label]).
  const std::vector<double> gradient = {9.0 / 44,  9.0 / 22 - 2.0 / 22,
                                        -9.0 / 44,  // (0,0): label 9/11, blank 2/11
                                        0,         -9.0 / 44,
                                        0,  // (0,1): blank 9/11
                                        1.0 / 11,  3.0 / 22,
                                        -1.0 / 11,  // (1,0): label 2/11
                                        0,         -1.0 / 2,
                                        0};  // (1,1): blank 1
  m.near("gradient", plain.logits_gradient, gradient);

  DenseBatch clamped = lattice_of(table, 2, 1, kNodes, 2);
  clamped.clamp = 0.1;
  std::vector<double> expected = gradient;
  for (double& g : expected) g = std::fmin(std::fmax(g, -0.1), 0.1);
  m.near("clamped gradient", clamped.run().logits_gradient, expected);

  // A label equal to blank lies outside the label softmax: no path.
  DenseBatch blank_label = lattice_of(table, 2, 1, kNodes, 2);
  blank_label.targets = {1};
  m.equal("cost of label = blank", blank_label.run().costs[0], kInf);
}

// The same with the blank last.
void check_blank_last(const VariantTable& table, Mismatches& m) {
  m.near("likelihood",
         likelihood(lattice_of(table, 2, 1, {{1, 3, 1}, {1, 1, 3}, {2, 2, 3}, {1, 1, 1}})),
         11.0 / 64);
}

const bool kRegistered[] = {register_literals({"hat", {{"blank", std::int64_t{1}}}, check}),
                            register_literals({"hat", {}, check_blank_last})};

}  // namespace
}  // namespace transducer::testing
