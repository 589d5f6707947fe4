// SPDX-License-Identifier: Apache-2.0
//
// Random variant tables and random batches, drawn through RapidCheck so that a failure shrinks:
// fewer frames, labels and arcs first, numbers towards 0. Sizes stay small enough to enumerate all
// paths. Every legal feature of a table and of a request turns up; feature_counts.hpp counts them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <rapidcheck.h>

#include "reference/core/variant_table.hpp"
#include "reference/variants/all.hpp"
#include "tests/support/fixture.hpp"

namespace transducer::testing {

/// An integer from `least` to `most`, both included; shrinks towards `least`.
inline std::int64_t draw(std::int64_t least, std::int64_t most) {
  return *rc::gen::inRange(least, most + 1);
}
/// True in `percent` of cases; shrinks towards false.
inline bool chance(int percent) { return draw(0, 99) >= 100 - percent; }

/// A multiple of `step`; the index 0, 1, 2, 3, 4 stands for 0, 1, -1, 2, -2 steps.
inline double number(std::int64_t index, double step) {
  return static_cast<double>(index % 2 == 1 ? (index + 1) / 2 : -(index / 2)) * step;
}
inline double draw_number(double limit, double step) {
  return number(draw(0, 2 * static_cast<std::int64_t>(limit / step)), step);
}

/// Numbers from -limit to limit; `forbidden` percent of them are -inf.
inline std::vector<double> draw_numbers(std::int64_t count, double limit, double step,
                                        int forbidden) {
  const auto levels = 2 * static_cast<std::int64_t>(limit / step) + 1;
  const auto total = forbidden == 0 ? levels : levels * 100 / (100 - forbidden) + 1;
  const auto element = rc::gen::map(rc::gen::inRange<std::int64_t>(0, total), [=](std::int64_t i) {
    return i < levels ? number(i, step) : -kInf;
  });
  return *rc::gen::container<std::vector<double>>(static_cast<std::size_t>(count), element);
}

/// Column k of K as a position, counted from 0 or from V.
inline Position draw_position(std::int64_t k, std::int64_t vocabulary) {
  return chance(50) ? vocabulary_plus(k - vocabulary) : Position{k, false};
}

inline Group draw_group(std::int64_t columns, std::int64_t vocabulary) {
  Group group;
  const std::int64_t kind = draw(0, 9);
  group.normaliser = kind < 6   ? Normaliser::softmax
                     : kind < 8 ? Normaliser::bernoulli
                                : Normaliser::none;
  const bool whole = chance(40);  // wide groups, so that columns tend to lie inside
  const std::int64_t begin = whole ? 0 : draw(0, columns - 1);
  std::int64_t end = whole ? columns : draw(begin + 1, columns);
  if (group.normaliser == Normaliser::bernoulli) end = begin + 1;
  group.begin = draw_position(begin, vocabulary);
  group.end = draw_position(end, vocabulary);
  group.clamp = !chance(20);
  if (group.normaliser == Normaliser::bernoulli) return group;
  group.exclude_fixed = chance(30);
  if (group.exclude_fixed) group.excluded = draw_position(draw(0, columns - 1), vocabulary);
  group.exclude_label = chance(30);
  return group;
}

inline Column draw_column(const VariantTable& table, std::int64_t columns,
                          std::int64_t vocabulary) {
  Column column;
  const std::int64_t kind = draw(0, 9);
  if (kind < 4) {
    column.position = draw_position(draw(0, columns - 1), vocabulary);
  } else if (kind < 8 || table.num_groups == 0) {
    column.kind = ColumnKind::label;
    if (table.heads > 0 && chance(40)) column.label_offset = draw(1, table.heads);
  } else {
    column.group = static_cast<int>(draw(0, table.num_groups - 1));
    const bool readable = table.groups[column.group].normaliser != Normaliser::bernoulli;
    if (readable) column.kind = ColumnKind::log_sum;
  }
  for (int g = 0; g < table.num_groups; ++g) {
    const std::int64_t role = draw(0, 9);
    if (role >= 5 && role < 9) column.subtract |= group_bit(g);
    if (role == 9) column.add |= group_bit(g);
  }
  if (chance(25)) column.grad_scale = draw_number(2.0, 0.25);
  return column;
}

/// An arc of a legal table: what would push a c_g out of {-1, 0, +1} is dropped.
inline Arc draw_arc(const VariantTable& table, std::int64_t columns, std::int64_t vocabulary) {
  Arc arc;
  const bool usual = chance(70);  // one frame or one label on: lattices that have a path
  arc.du = static_cast<int>(draw(0, 1));
  arc.dt = usual ? (arc.du == 0 ? 1 : static_cast<int>(draw(0, 1)))
                 : static_cast<int>(draw(arc.du == 0 ? 1 : 0, 3));
  arc.may_finish = chance(60);
  arc.kind = static_cast<ArcKind>(draw(0, 2));
  arc.num_columns = static_cast<int>(draw(0, kMaxColumnsPerArc));
  for (int i = 0; i < arc.num_columns; ++i) {
    arc.columns[i] = draw_column(table, columns, vocabulary);
    for (int g = 0; g < table.num_groups; ++g) {
      if (std::abs(normaliser_sign(arc, g)) <= 1) continue;
      arc.columns[i].subtract &= static_cast<std::uint8_t>(~group_bit(g));
      arc.columns[i].add &= static_cast<std::uint8_t>(~group_bit(g));
    }
  }
  if (chance(40)) arc.constant.value = draw_number(1.0, 0.125);
  if (vocabulary >= 2 && chance(15)) arc.constant.log_v1 = draw_number(1.0, 0.5);
  if (chance(25)) arc.frame_bonus = draw_number(0.5, 0.125);
  return arc;
}

/// A legal table for logits with `columns` columns, `heads` of them after the vocabulary.
inline VariantTable draw_table(std::int64_t columns, int heads) {
  VariantTable table;
  set_name(table, "random");
  table.heads = heads;
  const std::int64_t vocabulary = columns - heads;
  const int groups = static_cast<int>(draw(0, kMaxGroups));
  for (int g = 0; g < groups; ++g) add_group(table, draw_group(columns, vocabulary));
  const int arcs = static_cast<int>(draw(1, 5));
  for (int a = 0; a < arcs; ++a) {
    Arc arc = draw_arc(table, columns, vocabulary);
    // Most tables can move in both directions and end; otherwise few batches would have a path.
    if (a == 0 && chance(85)) {
      arc.dt = 1;
      arc.du = 0;
      arc.may_finish = true;
    }
    if (a == 1 && chance(85)) arc.du = 1;
    add_arc(table, arc);
  }
  return table;
}

/// A named variant with random arguments, and the least vocabulary it works with.
inline std::pair<VariantTable, std::int64_t> draw_named_table(const NamedVariant& variant) {
  std::map<std::string, ParameterValue> given;
  std::int64_t vocabulary = 2;
  for (const Parameter& parameter : all_parameters(variant)) {
    ParameterValue value = parameter.example;
    if (parameter.name == "blank") {
      value = chance(50) ? std::int64_t{-1} : draw(-2, 1);
    } else if (parameter.name == "durations") {
      const std::int64_t least = variant.name == "tdt" ? 0 : 1;
      std::vector<std::int64_t> durations(static_cast<std::size_t>(draw(1, 3)));
      for (std::int64_t& duration : durations) duration = draw(least, 3);
      value = durations;
    } else if (std::holds_alternative<bool>(value)) {
      value = chance(50);
    } else if (std::holds_alternative<double>(value)) {
      if (chance(50)) value = draw_number(1.0, 0.25);
    } else if (!parameter.choices.empty()) {
      value = parameter.choices[static_cast<std::size_t>(
          draw(0, static_cast<std::int64_t>(parameter.choices.size()) - 1))];
    }
    given[parameter.name] = value;
  }
  if (variant.name == "multi_blank") {  // big blanks are the columns below blank
    const auto count =
        static_cast<std::int64_t>(std::get<std::vector<std::int64_t>>(given["durations"]).size());
    vocabulary = count + 2;
    given["blank"] = chance(50) ? std::int64_t{-1} : count;
  }
  return {make_variant(variant, given), vocabulary};
}

/// What a batch of a property may hold.
struct BatchLimits {
  std::int64_t batch = 3, frames = 5, labels = 4;
  bool infinite_logits = true;  ///< some logits are -inf
  double limit = 3.0;           ///< of |logits|
  double step = 0.09375;        ///< logits are multiples of it; 1 makes ties
};

/// Everything but the table, whose K columns are known.
inline void fill_batch(DenseBatch& batch, const BatchLimits& limits) {
  batch.B = draw(1, limits.batch);
  batch.T = draw(chance(90) ? 1 : 0, limits.frames);
  batch.U = draw(0, limits.labels);
  const bool ragged = chance(60);
  for (std::int64_t b = 0; b < batch.B; ++b) {
    const std::int64_t least = batch.T > 0 && chance(85) ? 1 : 0;
    batch.frame_lengths.push_back(ragged ? draw(least, batch.T) : batch.T);
    batch.target_lengths.push_back(ragged ? draw(0, batch.U) : batch.U);
  }
  const std::int64_t vocabulary = batch.K - batch.variant.heads;
  batch.targets = *rc::gen::container<std::vector<std::int64_t>>(
      static_cast<std::size_t>(batch.B * batch.U), rc::gen::inRange<std::int64_t>(0, vocabulary));
  const std::int64_t nodes = batch.B * batch.T * (batch.U + 1);
  const int forbidden = limits.infinite_logits && chance(30) ? 8 : 0;
  batch.logits = draw_numbers(nodes * batch.K, limits.limit, limits.step, forbidden);
  batch.from_log_probs = chance(15);
  const double step = limits.step < 1.0 ? 0.25 : 1.0;
  if (chance(35)) {
    batch.arc_scores = draw_numbers(nodes * batch.A(), 1.0, step, chance(50) ? 15 : 0);
  }
  if (chance(25)) batch.start_scores = draw_numbers(batch.B * batch.T, 1.0, step, 40);
  if (chance(25)) batch.final_scores = draw_numbers(batch.B * (batch.T + 1), 1.0, step, 40);
  if (chance(25)) {  // wide enough for a path most of the time
    for (std::int64_t row = 0; row < batch.B * batch.T; ++row) {
      batch.band.push_back(draw(-1, chance(20) ? 2 : 0));
      batch.band.push_back(batch.U + 1 - draw(0, chance(20) ? 3 : 1));
    }
  }
}

/// A batch over a random table.
inline rc::Gen<DenseBatch> random_batch(const BatchLimits& limits = {}) {
  return rc::gen::resize(rc::kNominalSize, rc::gen::exec([=] {
                           DenseBatch batch;
                           const int heads = chance(50) ? static_cast<int>(draw(1, 2)) : 0;
                           batch.K = draw(1, 6) + heads;
                           batch.variant = draw_table(batch.K, heads);
                           fill_batch(batch, limits);
                           return batch;
                         }));
}

/// A batch over a named variant with random arguments.
inline rc::Gen<DenseBatch> named_batch(const NamedVariant& variant,
                                       const BatchLimits& limits = {}) {
  return rc::gen::resize(rc::kNominalSize, rc::gen::exec([=] {
                           DenseBatch batch;
                           const auto [table, vocabulary] = draw_named_table(variant);
                           batch.variant = table;
                           batch.K = draw(vocabulary, 6) + table.heads;
                           fill_batch(batch, limits);
                           return batch;
                         }));
}

/// A batch over a random table in three cases of five, else over a named variant.
inline rc::Gen<DenseBatch> any_batch(const BatchLimits& limits = {}) {
  return rc::gen::resize(rc::kNominalSize, rc::gen::exec([=] {
                           if (chance(60)) return *random_batch(limits);
                           const auto& variants = named_variants();
                           const auto index =
                               draw(0, static_cast<std::int64_t>(variants.size()) - 1);
                           return *named_batch(variants[static_cast<std::size_t>(index)], limits);
                         }));
}

}  // namespace transducer::testing
