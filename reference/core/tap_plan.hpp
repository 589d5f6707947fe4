// SPDX-License-Identifier: Apache-2.0
//
// TapPlan: what the optimised layers compile a bound variant to, so that nothing inside a loop over the
// vocabulary reads the arc list. Per node a layer gathers the taps (the few columns that arcs read by
// name) and the log-sum of each group that is read; arcs are then short sums over those:
//
//   w(arc) = sum of taps + sum of log-sums + sum c_g Z_g + constant + frame_bonus ((T-1)/2 - t)
//
// and on the way back the gradient of a row is, per group, one coefficient times its softmax, plus
// corrections at the taps. The reference reads the table itself, never this.
#pragma once

#include <cstdint>

#include "reference/core/label_arcs.hpp"
#include "reference/core/variant_table.hpp"

namespace transducer {

inline constexpr int kMaxTaps = kMaxArcs * kMaxColumnsPerArc;

/// One column of an arc: a tap, or the log-sum of a group.
struct PlannedColumn {
  int tap = -1;               ///< index into the taps, or -1
  int log_sum = -1;           ///< group, or -1
  std::uint8_t subtract = 0;  ///< groups whose Z is subtracted and not constant 0
  std::uint8_t add = 0;
  double grad_scale = 1.0;
};

struct PlannedArc {
  int dt = 0;
  int du = 0;
  bool may_finish = false;
  bool reads_label = false;  ///< some column is the next label: absent at u = U
  int num_columns = 0;
  PlannedColumn columns[kMaxColumnsPerArc] = {};
  std::uint8_t reads_groups = 0;  ///< groups whose log-sum decides the weight or the existence
  double constant = 0.0;
  double frame_bonus = 0.0;
};

struct TapPlan {
  int num_arcs = 0;
  int num_groups = 0;
  PlannedArc arcs[kMaxArcs] = {};
  Group groups[kMaxGroups] = {};

  int num_fixed = 0;  ///< taps 0 .. num_fixed - 1 are columns fixed[i]
  int num_taps = 0;   ///< the rest are next label + label_offsets[i - num_fixed]
  std::int64_t fixed[kMaxTaps] = {};
  std::int64_t label_offsets[kMaxTaps] = {};

  std::uint8_t read_groups = 0;       ///< groups whose log-sum is needed
  std::uint8_t unclamped_groups = 0;  ///< groups with clamp = false
  bool depends_on_label = false;      ///< some group excludes the next label
  int max_dt = 0;
  double gain = 0.0;  ///< bound of |d cost / d x| over a node's occupancy

  /// Column of a tap where the next label is `label`.
  TX_HD std::int64_t tap_column(int tap, std::int64_t label) const {
    return tap < num_fixed ? fixed[tap] : label + label_offsets[tap - num_fixed];
  }
};

/// Columns that the arcs of a table, bound or not, read by name: at least as many as the plan has taps.
int count_taps(const VariantTable& table);

/// Compiles a table that bind_table() made absolute. With `from_log_probs` every Z is 0.
TapPlan make_tap_plan(const VariantTable& bound, bool from_log_probs);

}  // namespace transducer
