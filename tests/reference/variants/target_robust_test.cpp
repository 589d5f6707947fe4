// SPDX-License-Identifier: Apache-2.0
//
// Target-robust transducer by hand: T = 2, U = 1, symbols {0, 1, blank = 2, 3}, label 1. A skipped
// frame costs a factor 1/3 (not on the last frame), a skipped token 1/2 times its score.
#include "tests/support/literals.hpp"

namespace transducer::testing {
namespace {

// Node weights and their sums:   (0,0) /8      (0,1) /8      (1,0) /5      (1,1) /4
const std::vector<std::vector<double>> kNodes = {
    {1, 2, 2, 3}, {1, 1, 4, 2}, {2, 1, 1, 1}, {1, 1, 1, 1}};

void check(const VariantTable& table, Mismatches& m) {
  m.equal("name", std::string(table.name), std::string("target_robust"));
  m.equal("arcs", describe_arcs(table), std::string("blank(1,0)! label(0,1) skip(1,0) skip(0,1)"));
  m.equal("normalisers", describe_normalisers(table), std::string("-0 -0  -0"));
  m.equal("normaliser of the log-sum", table.groups[1].normaliser == Normaliser::none, true);

  // label or skip token at (0,0):   (1/4 + 1/2 * 4/8) * (blank 1/2 + skip frame 1/3) * 1/4 = 10/96
  // blank or skip frame at (0,0):   (1/4 + 1/3) * (label 1/5 + skip token 1/2 * 3/5) * 1/4 =  7/96
  const Outcome plain = lattice_of(table, 2, 1, kNodes).run();
  m.near("likelihood", std::exp(-plain.costs[0]), 17.0 / 96);
  m.near("arc_posterior", plain.arc_posterior,
         {3.0 / 17, 5.0 / 17, 4.0 / 17, 5.0 / 17,  // (0,0): blank, label, skip frame, skip token
          6.0 / 17, 0, 4.0 / 17, 0,                // (0,1)
          0, 14.0 / 85, 0, 21.0 / 85,              // (1,0)
          1, 0, 0, 0});                            // (1,1)
  // p * (blank + label + skip token) - gamma - gamma(skip token) * share in the log-sum
  const std::vector<double> gradient = {13.0 / 136 - 5.0 / 68,
                                        13.0 / 68 - 5.0 / 17,
                                        13.0 / 68 - 3.0 / 17,
                                        39.0 / 136 - 15.0 / 68,
                                        3.0 / 68,
                                        3.0 / 68,
                                        3.0 / 17 - 6.0 / 17,
                                        3.0 / 34,
                                        14.0 / 85 - 14.0 / 85,
                                        7.0 / 85 - 14.0 / 85,
                                        7.0 / 85,
                                        7.0 / 85 - 7.0 / 85,
                                        1.0 / 4,
                                        1.0 / 4,
                                        1.0 / 4 - 1,
                                        1.0 / 4};
  m.near("gradient", plain.logits_gradient, gradient);
  DenseBatch clamped = lattice_of(table, 2, 1, kNodes);
  clamped.clamp = 0.05;
  std::vector<double> expected = gradient;
  for (double& g : expected) g = std::fmin(std::fmax(g, -0.05), 0.05);
  m.near("clamped gradient", clamped.run().logits_gradient, expected);
}

const bool kRegistered = register_literals({"target_robust",
                                            {{"blank", std::int64_t{2}},
                                             {"skip_frame_penalty", std::log(1.0 / 3)},
                                             {"skip_token_penalty", std::log(0.5)}},
                                            check});

}  // namespace
}  // namespace transducer::testing
