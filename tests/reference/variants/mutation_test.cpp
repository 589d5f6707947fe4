// SPDX-License-Identifier: Apache-2.0
//
// Oracle and kernels read the same tables, so a wrong table would fool both. This test holds every
// table against its hand-worked values, then changes each field of it in turn and wants a value to
// disagree.
#include <functional>
#include <iostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/literals.hpp"

namespace transducer::testing {
namespace {

struct Mutant {
  std::string change;
  VariantTable table;
};

class Mutator {
 public:
  explicit Mutator(const VariantTable& table) : table_(table) {}

  /// One mutant: the table after `change`.
  void change(const std::string& what, const std::function<void(VariantTable&)>& change) {
    VariantTable mutant = table_;
    change(mutant);
    mutants_.push_back({what, mutant});
  }

  std::vector<Mutant> all() {
    change("name", [](VariantTable& t) { set_name(t, "other"); });
    change("heads + 1", [](VariantTable& t) { ++t.heads; });
    change("last arc gone", [](VariantTable& t) { --t.num_arcs; });
    change("arc 0 and 1 swapped", [](VariantTable& t) { std::swap(t.arcs[0], t.arcs[1]); });
    for (int a = 0; a < table_.num_arcs; ++a) mutate_arc(a);
    for (int g = 0; g < table_.num_groups; ++g) mutate_group(g);
    return std::move(mutants_);
  }

 private:
  void mutate_arc(int a) {
    const std::string arc = "arc " + std::to_string(a) + ": ";
    change(arc + "dt + 1", [a](VariantTable& t) { ++t.arcs[a].dt; });
    change(arc + "dt - 1", [a](VariantTable& t) { --t.arcs[a].dt; });
    change(arc + "du", [a](VariantTable& t) { t.arcs[a].du = 1 - t.arcs[a].du; });
    change(arc + "may_finish", [a](VariantTable& t) { t.arcs[a].may_finish ^= true; });
    change(arc + "constant", [a](VariantTable& t) { t.arcs[a].constant.value += 0.5; });
    change(arc + "log_v1", [a](VariantTable& t) { t.arcs[a].constant.log_v1 += 1; });
    change(arc + "frame_bonus", [a](VariantTable& t) { t.arcs[a].frame_bonus += 0.25; });
    for (ArcKind kind : {ArcKind::blank, ArcKind::label, ArcKind::skip}) {
      if (kind == table_.arcs[a].kind) continue;
      change(arc + "kind", [a, kind](VariantTable& t) { t.arcs[a].kind = kind; });
    }
    if (table_.arcs[a].num_columns > 0) {
      change(arc + "last column gone", [a](VariantTable& t) { --t.arcs[a].num_columns; });
    }
    if (table_.arcs[a].num_columns < kMaxColumnsPerArc) {
      change(arc + "one more column", [a](VariantTable& t) {
        t.arcs[a].columns[t.arcs[a].num_columns++] = fixed_column(position(0));
      });
    }
    for (int i = 0; i < table_.arcs[a].num_columns; ++i) mutate_column(a, i);
  }

  void mutate_column(int a, int i) {
    const std::string column = "arc " + std::to_string(a) + ", column " + std::to_string(i) + ": ";
    const Column& now = table_.arcs[a].columns[i];
    const auto on = [&](const std::string& what, const std::function<void(Column&)>& edit) {
      change(column + what, [a, i, edit](VariantTable& t) { edit(t.arcs[a].columns[i]); });
    };
    for (ColumnKind kind : {ColumnKind::fixed, ColumnKind::label, ColumnKind::log_sum}) {
      if (kind != now.kind) on("kind", [kind](Column& c) { c.kind = kind; });
    }
    if (now.kind == ColumnKind::fixed) {
      on("position + 1", [](Column& c) { ++c.position.offset; });
      on("position - 1", [](Column& c) { --c.position.offset; });
      on("from_vocabulary", [](Column& c) { c.position.from_vocabulary ^= true; });
    }
    if (now.kind == ColumnKind::label) {
      on("label_offset + 1", [](Column& c) { ++c.label_offset; });
      on("label_offset - 1", [](Column& c) { --c.label_offset; });
    }
    if (now.kind == ColumnKind::log_sum) {
      on("group", [](Column& c) { c.group = 1 - c.group; });
    }
    for (int g = 0; g < table_.num_groups; ++g) {
      const std::string group = " of group " + std::to_string(g);
      on("subtract" + group, [g](Column& c) { c.subtract ^= group_bit(g); });
      on("add" + group, [g](Column& c) { c.add ^= group_bit(g); });
    }
    on("grad_scale", [](Column& c) { c.grad_scale *= 2; });
  }

  void mutate_group(int g) {
    const std::string group = "group " + std::to_string(g) + ": ";
    const auto on = [&](const std::string& what, const std::function<void(Group&)>& edit) {
      change(group + what, [g, edit](VariantTable& t) { edit(t.groups[g]); });
    };
    on("begin + 1", [](Group& x) { ++x.begin.offset; });
    on("begin - 1", [](Group& x) { --x.begin.offset; });
    on("begin from_vocabulary", [](Group& x) { x.begin.from_vocabulary ^= true; });
    on("end + 1", [](Group& x) { ++x.end.offset; });
    on("end - 1", [](Group& x) { --x.end.offset; });
    on("end from_vocabulary", [](Group& x) { x.end.from_vocabulary ^= true; });
    on("exclude_fixed", [](Group& x) {
      if (!x.exclude_fixed) x.excluded = x.begin;
      x.exclude_fixed ^= true;
    });
    if (table_.groups[g].exclude_fixed) {
      on("excluded + 1", [](Group& x) { ++x.excluded.offset; });
      on("excluded - 1", [](Group& x) { --x.excluded.offset; });
      on("excluded from_vocabulary", [](Group& x) { x.excluded.from_vocabulary ^= true; });
    }
    on("exclude_label", [](Group& x) { x.exclude_label ^= true; });
    for (Normaliser n : {Normaliser::softmax, Normaliser::bernoulli, Normaliser::none}) {
      if (n != table_.groups[g].normaliser) on("normaliser", [n](Group& x) { x.normaliser = n; });
    }
    on("clamp", [](Group& x) { x.clamp ^= true; });
  }

  VariantTable table_;
  std::vector<Mutant> mutants_;
};

VariantTable table_of(const Literals& literals) {
  return make_variant(find_variant(literals.variant), literals.arguments);
}

/// A mutant is noticed if a value disagrees or the table is refused.
bool is_noticed(const Literals& literals, const VariantTable& mutant) {
  Mismatches mismatches;
  try {
    literals.check(mutant, mismatches);
  } catch (const InvalidArgument&) {
    return true;
  }
  return !mismatches.list().empty();
}

TEST(VariantLiterals, EveryNamedVariantHasSome) {
  std::set<std::string> with_literals;
  for (const Literals& literals : all_literals()) with_literals.insert(literals.variant);
  for (const NamedVariant& variant : named_variants()) {
    EXPECT_TRUE(with_literals.count(variant.name) == 1)
        << variant.name << " has no hand-worked values; add tests/reference/variants/"
        << variant.name << "_test.cpp";
  }
}

TEST(VariantLiterals, AgreeWithTheTables) {
  for (const Literals& literals : all_literals()) {
    Mismatches mismatches;
    literals.check(table_of(literals), mismatches);
    for (const std::string& mismatch : mismatches.list()) {
      ADD_FAILURE() << literals.variant << ": " << mismatch;
    }
  }
}

TEST(VariantLiterals, NoFieldOfATableCanChangeUnnoticed) {
  // Arguments whose literals are complete: those that check gradients. The other sets of a variant
  // add a mode or a flag and are told apart below.
  std::set<std::string> seen;
  int mutants = 0;
  for (const Literals& literals : all_literals()) {
    if (!seen.insert(literals.variant).second) continue;
    for (const Mutant& mutant : Mutator(table_of(literals)).all()) {
      ++mutants;
      EXPECT_TRUE(is_noticed(literals, mutant.table))
          << literals.variant << ": " << mutant.change << " goes unnoticed";
    }
  }
  RecordProperty("mutants", mutants);
  std::cout << mutants << " mutants, each noticed by a hand-worked value\n";
}

TEST(VariantLiterals, SetsWithOtherArgumentsDisagreeWithThePlainTable) {
  for (const Literals& literals : all_literals()) {
    for (const Literals& other : all_literals()) {
      if (&other == &literals || other.variant != literals.variant) continue;
      EXPECT_TRUE(is_noticed(literals, table_of(other)))
          << literals.variant << ": its values cannot tell two sets of arguments apart";
    }
  }
}

}  // namespace
}  // namespace transducer::testing
