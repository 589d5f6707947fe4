// SPDX-License-Identifier: Apache-2.0
//
// VariantTable: a transducer variant as a value. Arcs say how far each moves and which logit
// columns it adds; groups say which columns are normalised together (docs/math.md#arc-weight):
//
//   w(arc at t, u) = sum x[column] + sum c_g Z_g + constant + frame_bonus * ((T-1)/2 - t)
//
// with Z_g the log-normaliser of group g and c_g in {-1, 0, +1}. Every layer reads this table; none
// has code of its own for a variant. Positions on the logit axis may be symbolic ("V - 1", "V +
// 2"): the vocabulary size V = K - heads is known when the call brings K logit columns, and
// bind_table() then makes every position absolute. Trivially copyable; host and device.
#pragma once

#include <cstdint>
#include <string_view>

#include "reference/core/macros.hpp"

namespace transducer {

inline constexpr int kMaxArcs = 32;
inline constexpr int kMaxGroups = 4;
inline constexpr int kMaxColumnsPerArc = 2;
inline constexpr int kMaxNameLength = 47;

/// A place on the logit axis: `offset`, or V + `offset` where V is the vocabulary size.
struct Position {
  std::int64_t offset = 0;
  bool from_vocabulary = false;  ///< counts from V

  friend constexpr bool operator==(const Position&, const Position&) = default;
};

/// An integer as users write it: below 0 it counts back from V.
TX_HD constexpr Position position(std::int64_t index) { return {index, index < 0}; }
/// V + `offset`.
TX_HD constexpr Position vocabulary_plus(std::int64_t offset) { return {offset, true}; }
TX_HD constexpr Position operator+(Position p, std::int64_t step) {
  return {p.offset + step, p.from_vocabulary};
}
TX_HD constexpr Position operator-(Position p, std::int64_t step) { return p + (-step); }

/// `value` + `log_v1` * log(V - 1).
struct Constant {
  double value = 0.0;
  double log_v1 = 0.0;

  friend constexpr bool operator==(const Constant&, const Constant&) = default;
};

enum class ColumnKind : std::uint8_t {
  fixed,   ///< the logit at `position`
  label,   ///< the logit at next label + `label_offset`
  log_sum  ///< the log-sum-exp of the columns of group `group`, whatever that group's normaliser
};

/// One logit that an arc adds, with the groups whose log-normaliser it subtracts or adds.
struct Column {
  ColumnKind kind = ColumnKind::fixed;
  Position position = {};
  std::int64_t label_offset = 0;
  int group = 0;
  std::uint8_t subtract = 0;  ///< bit g: subtract Z_g
  std::uint8_t add = 0;       ///< bit g: add Z_g
  double grad_scale = 1.0;    ///< multiplies this column's derivative, its Z included (FastEmit)

  friend constexpr bool operator==(const Column&, const Column&) = default;
};

TX_HD constexpr std::uint8_t group_bit(int group) { return static_cast<std::uint8_t>(1u << group); }

TX_HD constexpr Column fixed_column(Position position, std::uint8_t subtract = 0,
                                    std::uint8_t add = 0) {
  return {.kind = ColumnKind::fixed, .position = position, .subtract = subtract, .add = add};
}
TX_HD constexpr Column label_column(std::uint8_t subtract = 0, std::uint8_t add = 0,
                                    std::int64_t label_offset = 0) {
  return {
      .kind = ColumnKind::label, .label_offset = label_offset, .subtract = subtract, .add = add};
}
TX_HD constexpr Column log_sum_column(int group, std::uint8_t subtract = 0, std::uint8_t add = 0) {
  return {.kind = ColumnKind::log_sum, .group = group, .subtract = subtract, .add = add};
}

/// What an arc emits; for names, occupancy tables and FastEmit, not for the lattice.
enum class ArcKind : std::uint8_t { blank, label, skip };

/// A move (t, u) -> (t + dt, u + du) and the terms of its weight.
struct Arc {
  int dt = 0;
  int du = 0;
  int num_columns = 0;
  Column columns[kMaxColumnsPerArc] = {};
  Constant constant = {};
  double frame_bonus = 0.0;  ///< times ((T-1)/2 - t)
  bool may_finish = false;   ///< may land on t = T
  ArcKind kind = ArcKind::blank;

  friend constexpr bool operator==(const Arc&, const Arc&) = default;
};

enum class Normaliser : std::uint8_t {
  softmax,    ///< Z = log-sum-exp of the columns
  bernoulli,  ///< Z = softplus of the one column
  none        ///< Z = 0
};

/// Columns [begin, end) less at most one fixed column and at most the next label.
struct Group {
  Position begin = {};
  Position end = {};
  bool exclude_fixed = false;
  Position excluded = {};
  bool exclude_label = false;
  Normaliser normaliser = Normaliser::softmax;
  bool clamp = true;  ///< false: gradients of columns in [begin, end) are not clamped

  friend constexpr bool operator==(const Group&, const Group&) = default;
};

struct VariantTable {
  char name[kMaxNameLength + 1] = {};
  int heads = 0;  ///< extra logit columns after the vocabulary: V = K - heads
  int num_arcs = 0;
  int num_groups = 0;
  Arc arcs[kMaxArcs] = {};
  Group groups[kMaxGroups] = {};

  friend constexpr bool operator==(const VariantTable&, const VariantTable&) = default;
};

/// Fills the name; longer names are cut (check_table refuses an empty one).
constexpr void set_name(VariantTable& table, std::string_view name) {
  for (int i = 0; i <= kMaxNameLength; ++i) {
    table.name[i] = i < kMaxNameLength && i < static_cast<int>(name.size()) ? name[i] : '\0';
  }
}
constexpr void add_arc(VariantTable& table, const Arc& arc) { table.arcs[table.num_arcs++] = arc; }
constexpr int add_group(VariantTable& table, const Group& group) {
  table.groups[table.num_groups] = group;
  return table.num_groups++;
}

/// c_g of the arc: how often it adds Z_g less how often it subtracts it.
TX_HD constexpr int normaliser_sign(const Arc& arc, int group) {
  int sign = 0;
  for (int i = 0; i < arc.num_columns; ++i) {
    if (arc.columns[i].add & group_bit(group)) ++sign;
    if (arc.columns[i].subtract & group_bit(group)) --sign;
  }
  return sign;
}

/// Whether column index k of a bound table belongs to the group at a node whose next label is
/// `label` (-1 where there is none: then nothing is excluded for it).
TX_HD constexpr bool group_contains(const Group& group, std::int64_t k, std::int64_t label) {
  if (k < group.begin.offset || k >= group.end.offset) return false;
  if (group.exclude_fixed && k == group.excluded.offset) return false;
  return !(group.exclude_label && k == label);
}

/// Throws InvalidArgument with a sentence that says what to change unless the table is legal:
/// 1 to 32 arcs, at most 4 groups, dt >= 0, du in {0, 1}, dt + du >= 1, group indices that exist,
/// c_g in {-1, 0, +1}, one-column Bernoulli groups, finite numbers.
void check_table(const VariantTable& table);

/// The table with every position absolute and every constant a number, for logits with `columns`
/// columns. Throws InvalidArgument, beginning with `caller`, if a position falls outside them.
VariantTable bind_table(const VariantTable& table, std::int64_t columns, std::string_view caller);

}  // namespace transducer
