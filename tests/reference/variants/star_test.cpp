// SPDX-License-Identifier: Apache-2.0
//
// Star transducer by hand: T = 2, U = 1, symbols {0, 1, blank = 2}, label 1, a skipped frame costs
// a factor 1/2. The last frame cannot be skipped.
#include "tests/support/literals.hpp"

namespace transducer::testing {
namespace {

// Node weights and their sums:   (0,0) /4    (0,1) /4    (1,0) /5    (1,1) /8
const std::vector<std::vector<double>> kNodes = {{1, 2, 1}, {1, 1, 2}, {2, 1, 2}, {3, 1, 4}};

void check(const VariantTable& table, Mismatches& m) {
  m.equal("name", std::string(table.name), std::string("star"));
  m.equal("arcs", describe_arcs(table), std::string("blank(1,0)! label(0,1) skip(1,0)"));

  // label, blank, blank: 2/4 * 2/4 * 4/8 = 5/40      label, skip, blank: 2/4 * 1/2 * 4/8 = 5/40
  // blank, label, blank: 1/4 * 1/5 * 4/8 = 1/40      skip, label, blank: 1/2 * 1/5 * 4/8 = 2/40
  const Outcome plain = lattice_of(table, 2, 1, kNodes).run();
  m.near("cost", plain.costs[0], -std::log(13.0 / 40));
  // A skip reads no logit: the softmax sees the other arcs only.
  const std::vector<double> gradient = {11.0 / 52,
                                        11.0 / 26 - 10.0 / 13,
                                        11.0 / 52 - 1.0 / 13,  // (0,0): label 10/13, blank 1/13
                                        5.0 / 52,
                                        5.0 / 52,
                                        5.0 / 26 - 5.0 / 13,  // (0,1): blank 5/13
                                        6.0 / 65,
                                        3.0 / 65 - 3.0 / 13,
                                        6.0 / 65,  // (1,0): label 3/13
                                        3.0 / 8,
                                        1.0 / 8,
                                        1.0 / 2 - 1};  // (1,1): blank 1
  m.near("gradient", plain.logits_gradient, gradient);
  DenseBatch clamped = lattice_of(table, 2, 1, kNodes);
  clamped.clamp = 0.2;
  m.near("clamped gradient", clamped.run().logits_gradient[0], 0.2);
}

const bool kRegistered =
    register_literals({"star", {{"skip_frame_penalty", std::log(0.5)}}, check});

}  // namespace
}  // namespace transducer::testing
