// SPDX-License-Identifier: Apache-2.0
//
// Bypass transducer by hand: T = 2, U = 1, symbols {0, 1, blank = 2, 3}, label 1; a skipped token
// costs a factor 1/2 times its score.
#include "tests/support/literals.hpp"

namespace transducer::testing {
namespace {

// Node weights and their sums:   (0,0) /8      (0,1) /8      (1,0) /5      (1,1) /4
const std::vector<std::vector<double>> kNodes = {
    {1, 2, 2, 3}, {1, 1, 4, 2}, {2, 1, 1, 1}, {1, 1, 1, 1}};

// The ways that do not skip: label, blank, blank: 2/8 * 4/8 * 1/4 = 1/32, and blank, label, blank:
// 2/8 * 1/5 * 1/4 = 1/80. A skip token of weight s at (0,0) adds s * 4/8 * 1/4 = s/8, and at (1,0)
// 2/8 * s * 1/4 = s/16.
double with_skips(double at_0, double at_1) { return 1.0 / 32 + 1.0 / 80 + at_0 / 8 + at_1 / 16; }

void check_sumexcl(const VariantTable& table, Mismatches& m) {
  m.equal("name", std::string(table.name), std::string("bypass"));
  m.equal("arcs", describe_arcs(table), std::string("blank(1,0)! label(0,1) skip(0,1)"));
  m.equal("normalisers", describe_normalisers(table), std::string("-0 -0 -0"));
  m.equal("normaliser of the log-sum", table.groups[1].normaliser == Normaliser::none, true);

  // Everything but blank and label: 4/8 at (0,0), 3/5 at (1,0). Likelihood 3/32; the shares of
  // label, skip, blank + label, blank + skip are 1/3, 1/3, 2/15, 1/5.
  const Outcome plain = lattice_of(table, 2, 1, kNodes).run();
  m.near("likelihood", std::exp(-plain.costs[0]), with_skips(0.5 * 4 / 8, 0.5 * 3 / 5));
  m.near("likelihood", std::exp(-plain.costs[0]), 3.0 / 32);
  m.near("weight of the blank at (0,0)", plain.arc_weights[0], std::log(2.0 / 8));
  // p * occupancy - gamma, and - gamma(skip) * the share of each column in the log-sum.
  const std::vector<double> gradient = {1.0 / 8 - 1.0 / 12,
                                        1.0 / 4 - 1.0 / 3,
                                        1.0 / 4 - 1.0 / 3,
                                        3.0 / 8 - 1.0 / 4,  // (0,0), 1
                                        1.0 / 12,
                                        1.0 / 12,
                                        1.0 / 3 - 2.0 / 3,
                                        1.0 / 6,  // (0,1), 2/3
                                        2.0 / 15 - 2.0 / 15,
                                        1.0 / 15 - 2.0 / 15,
                                        1.0 / 15,
                                        1.0 / 15 - 1.0 / 15,  // (1,0), 1/3
                                        1.0 / 4,
                                        1.0 / 4,
                                        1.0 / 4 - 1,
                                        1.0 / 4};  // (1,1), 1
  m.near("gradient", plain.logits_gradient, gradient);
  DenseBatch clamped = lattice_of(table, 2, 1, kNodes);
  clamped.clamp = 0.1;
  std::vector<double> expected = gradient;
  for (double& g : expected) g = std::fmin(std::fmax(g, -0.1), 0.1);
  m.near("clamped gradient", clamped.run().logits_gradient, expected);
}

// Everything but blank: 6/8 at (0,0), 4/5 at (1,0).
void check_sum(const VariantTable& table, Mismatches& m) {
  m.near("likelihood", likelihood(lattice_of(table, 2, 1, kNodes)),
         with_skips(0.5 * 6 / 8, 0.5 * 4 / 5));
}

// The same, divided by V - 1 = 3.
void check_mean(const VariantTable& table, Mismatches& m) {
  m.near("likelihood", likelihood(lattice_of(table, 2, 1, kNodes)),
         with_skips(0.5 * 6 / 8 / 3, 0.5 * 4 / 5 / 3));
}

void check_constant(const VariantTable& table, Mismatches& m) {
  m.equal("groups", table.num_groups, 1);
  m.near("likelihood", likelihood(lattice_of(table, 2, 1, kNodes)), with_skips(0.5, 0.5));
}

// The default: the blank is the last symbol, so the columns turn round.
void check_blank_last(const VariantTable& table, Mismatches& m) {
  m.near(
      "likelihood",
      likelihood(lattice_of(table, 2, 1, {{1, 2, 3, 2}, {1, 1, 2, 4}, {2, 1, 1, 1}, {1, 1, 1, 1}})),
      3.0 / 32);
}

ParameterValues with_mode(const char* mode) {
  return {{"skip_token_penalty", std::log(0.5)},
          {"blank", std::int64_t{2}},
          {"mode", std::string(mode)}};
}

const bool kRegistered[] = {
    register_literals({"bypass", with_mode("sumexcl"), check_sumexcl}),
    register_literals({"bypass", with_mode("sum"), check_sum}),
    register_literals({"bypass", with_mode("mean"), check_mean}),
    register_literals({"bypass", with_mode("constant"), check_constant}),
    register_literals({"bypass", {{"skip_token_penalty", std::log(0.5)}}, check_blank_last})};

}  // namespace
}  // namespace transducer::testing
