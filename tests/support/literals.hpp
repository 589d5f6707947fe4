// SPDX-License-Identifier: Apache-2.0
//
// Values worked by hand, held against a variant table. Tests of the named variants state them; the
// mutation test then changes every field of every table in turn and wants some value to disagree.
//
// Logits are logarithms of small integers, so every probability is a fraction: a node written
// {1, 2, 1} has p = 1/4, 1/2, 1/4. Sums differ from 1 on purpose: a forgotten normaliser shows.
#pragma once

#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "reference/core/variant_table.hpp"
#include "reference/variants/all.hpp"
#include "tests/support/fixture.hpp"

namespace transducer::testing {

/// Collects disagreements instead of failing at once.
class Mismatches {
 public:
  void near(const std::string& what, double got, double expected) {
    if (std::abs(got - expected) <= 1e-12) return;
    add(what, got, expected);
  }
  void near(const std::string& what, const std::vector<double>& got,
            const std::vector<double>& expected) {
    if (got.size() != expected.size()) return add(what + ".size", got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      near(what + "[" + std::to_string(i) + "]", got[i], expected[i]);
    }
  }
  template <class T>
  void equal(const std::string& what, const T& got, const T& expected) {
    if (!(got == expected)) add(what, got, expected);
  }

  const std::vector<std::string>& list() const { return list_; }

 private:
  template <class A, class B>
  void add(const std::string& what, const A& got, const B& expected) {
    std::ostringstream text;
    text.precision(17);
    text << what << " is " << got << ", worked by hand: " << expected;
    list_.push_back(text.str());
  }

  std::vector<std::string> list_;
};

using ParameterValues = std::map<std::string, ParameterValue>;

/// Hand-worked values of one named variant with one set of arguments.
struct Literals {
  std::string variant;
  ParameterValues arguments;
  void (*check)(const VariantTable&, Mismatches&);
};

inline std::vector<Literals>& all_literals() {
  static std::vector<Literals> literals;
  return literals;
}

/// Adds an entry before main() runs; the return value gives the initialiser something to hold.
inline bool register_literals(const Literals& literals) {
  all_literals().push_back(literals);
  return true;
}

/// "blank(1,0)! label(0,1)": kinds and moves in arc order, `!` where the arc may land on t = T.
inline std::string describe_arcs(const VariantTable& table) {
  static const char* const kKinds[] = {"blank", "label", "skip"};
  std::string text;
  for (int a = 0; a < table.num_arcs; ++a) {
    const Arc& arc = table.arcs[a];
    if (!text.empty()) text += ' ';
    text += std::string(kKinds[static_cast<int>(arc.kind)]) + "(" + std::to_string(arc.dt) + "," +
            std::to_string(arc.du) + ")" + (arc.may_finish ? "!" : "");
  }
  return text;
}

/// "-0 -0+1": for each arc the groups whose normaliser its columns subtract or add.
inline std::string describe_normalisers(const VariantTable& table) {
  std::string text;
  for (int a = 0; a < table.num_arcs; ++a) {
    if (!text.empty()) text += ' ';
    for (int i = 0; i < table.arcs[a].num_columns; ++i) {
      for (int g = 0; g < kMaxGroups; ++g) {
        const Column& column = table.arcs[a].columns[i];
        if ((column.subtract & group_bit(g)) != 0) text += "-" + std::to_string(g);
        if ((column.add & group_bit(g)) != 0) text += "+" + std::to_string(g);
      }
    }
  }
  return text;
}

/// Logs of integer weights, node by node in the order (0,0), (0,1), ..., (1,0), ...
inline std::vector<double> logs(const std::vector<std::vector<double>>& weights) {
  std::vector<double> logits;
  for (const std::vector<double>& node : weights) {
    for (double weight : node) logits.push_back(std::log(weight));
  }
  return logits;
}

/// One utterance whose nodes have these weights and whose labels are all `label`.
inline DenseBatch lattice_of(const VariantTable& table, std::int64_t frames, std::int64_t labels,
                             const std::vector<std::vector<double>>& weights,
                             std::int64_t label = 1) {
  DenseBatch batch;
  batch.T = frames;
  batch.U = labels;
  batch.K = static_cast<std::int64_t>(weights.front().size());
  batch.variant = table;
  batch.logits = logs(weights);
  batch.targets.assign(static_cast<std::size_t>(labels), label);
  return batch;
}

/// The likelihood e^-cost.
inline double likelihood(DenseBatch batch) { return std::exp(-batch.run().costs[0]); }

}  // namespace transducer::testing
