// SPDX-License-Identifier: Apache-2.0
#include "reference/enumerate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "reference/core/error.hpp"

namespace transducer::reference {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

std::int64_t num_labels(const TinyLattice& lattice) {
  return static_cast<std::int64_t>(lattice.labels.size());
}

/// log of the sum of e^x over the columns of a group, written out as a sum.
double log_sum_of_group(const TinyLattice& lattice, const Group& group, std::int64_t t,
                        std::int64_t u) {
  double largest = kNothing;
  double sum = 0.0;
  for (int pass = 0; pass < 2; ++pass) {
    for (std::int64_t k = group.begin.offset; k < group.end.offset; ++k) {
      const bool is_label = u < num_labels(lattice) && k == lattice.labels[std::size_t(u)];
      if (group.exclude_label && is_label) continue;
      if (group.exclude_fixed && k == group.excluded.offset) continue;
      const double x = lattice.logits(t, u, k);
      if (pass == 0 && x > largest) largest = x;
      if (pass == 1 && largest > kNothing) sum += std::exp(x - largest);
    }
  }
  return largest > kNothing ? largest + std::log(sum) : kNothing;
}

double normaliser(const TinyLattice& lattice, const Group& group, std::int64_t t, std::int64_t u) {
  if (lattice.from_log_probs || group.normaliser == Normaliser::none) return 0.0;
  if (group.normaliser == Normaliser::softmax) return log_sum_of_group(lattice, group, t, u);
  return std::log1p(std::exp(lattice.logits(t, u, group.begin.offset)));  // small logits only
}

bool label_is_outside(const TinyLattice& lattice, const Column& column, std::int64_t label) {
  bool subtracts_softmax = false;
  for (int g = 0; g < lattice.table.num_groups; ++g) {
    const Group& group = lattice.table.groups[g];
    if ((column.subtract >> g & 1) == 0 || group.normaliser != Normaliser::softmax) continue;
    subtracts_softmax = true;
    const std::int64_t k = label + column.label_offset;
    const bool excluded =
        (group.exclude_fixed && group.excluded.offset == k) || (group.exclude_label && label == k);
    if (group.begin.offset <= k && k < group.end.offset && !excluded) return false;
  }
  return subtracts_softmax;
}

double column_weight(const TinyLattice& lattice, const Column& column, std::int64_t t,
                     std::int64_t u) {
  double weight = 0.0;
  if (column.kind == ColumnKind::label) {
    if (u == num_labels(lattice)) return kNothing;
    const std::int64_t label = lattice.labels[std::size_t(u)];
    if (label_is_outside(lattice, column, label)) return kNothing;
    weight = lattice.logits(t, u, label + column.label_offset);
  } else if (column.kind == ColumnKind::fixed) {
    weight = lattice.logits(t, u, column.position.offset);
  } else {
    weight = log_sum_of_group(lattice, lattice.table.groups[column.group], t, u);
  }
  for (int g = 0; g < lattice.table.num_groups; ++g) {
    const bool subtract = (column.subtract >> g & 1) != 0;
    const bool add = (column.add >> g & 1) != 0;
    if (!subtract && !add) continue;
    const double z = normaliser(lattice, lattice.table.groups[g], t, u);
    if (z == kNothing) return kNothing;
    weight += subtract ? -z : z;
  }
  return weight;
}

bool allowed(const TinyLattice& lattice, std::int64_t t, std::int64_t u) {
  if (lattice.band.data == nullptr || t == lattice.frames) return true;
  return lattice.band(t, 0) <= u && u <= lattice.band(t, 1);
}

class Walk {
 public:
  Walk(const TinyLattice& lattice, std::int64_t limit) : lattice_(lattice), limit_(limit) {}

  std::vector<EnumeratedPath> run() {
    for (std::int64_t t = 0; t < lattice_.frames || t == 0; ++t) {
      double start = t == 0 ? 0.0 : kNothing;
      if (!lattice_.start_scores.empty() && lattice_.frames > 0) {
        start = lattice_.start_scores[std::size_t(t)];
      }
      if (start == kNothing || !allowed(lattice_, t, 0)) continue;
      path_ = {.weight = start, .start_frame = t, .end_frame = t, .steps = {}};
      visit(t, 0);
    }
    return std::move(paths_);
  }

 private:
  /// All ways on from (t, u), having walked path_ so far.
  void visit(std::int64_t t, std::int64_t u) {
    const double end = end_score(t, u);
    if (end != kNothing) {
      check(static_cast<std::int64_t>(paths_.size()) < limit_, "enumerate_paths: more than ",
            limit_, " paths, expected a smaller lattice; their number grows exponentially");
      paths_.push_back(path_);
      paths_.back().weight += end;
      paths_.back().end_frame = t;
    }
    if (t == lattice_.frames) return;
    for (int a = 0; a < lattice_.table.num_arcs; ++a) {
      const double weight = arc_weight(lattice_, t, u, a);
      if (weight == kNothing) continue;
      const double before = path_.weight;
      path_.weight += weight;
      path_.steps.push_back({.t = t, .u = u, .arc = a, .weight = weight});
      visit(t + lattice_.table.arcs[a].dt, u + lattice_.table.arcs[a].du);
      path_.steps.pop_back();
      path_.weight = before;
    }
  }

  double end_score(std::int64_t t, std::int64_t u) const {
    if (u != num_labels(lattice_) || !allowed(lattice_, t, u)) return kNothing;
    if (!lattice_.final_scores.empty() && lattice_.frames > 0) {
      return lattice_.final_scores[std::size_t(t)];
    }
    return t == lattice_.frames ? 0.0 : kNothing;
  }

  const TinyLattice& lattice_;
  std::int64_t limit_;
  EnumeratedPath path_;
  std::vector<EnumeratedPath> paths_;
};

}  // namespace

double arc_weight(const TinyLattice& lattice, std::int64_t t, std::int64_t u, int arc) {
  const Arc& a = lattice.table.arcs[arc];
  const std::int64_t to_t = t + a.dt;
  const std::int64_t to_u = u + a.du;
  if (to_t > lattice.frames || to_u > num_labels(lattice)) return kNothing;
  if (to_t == lattice.frames && !a.may_finish) return kNothing;
  if (!allowed(lattice, t, u) || !allowed(lattice, to_t, to_u)) return kNothing;
  double weight = a.constant.value;
  weight += a.frame_bonus * (double(lattice.frames - 1) / 2.0 - double(t));
  for (int i = 0; i < a.num_columns; ++i) weight += column_weight(lattice, a.columns[i], t, u);
  if (lattice.arc_scores.data != nullptr) weight += lattice.arc_scores(t, u, arc);
  return weight;
}

std::vector<EnumeratedPath> enumerate_paths(const TinyLattice& lattice, std::int64_t limit) {
  return Walk(lattice, limit).run();
}

double enumerated_cost(const TinyLattice& lattice) {
  const std::vector<EnumeratedPath> paths = enumerate_paths(lattice);
  double largest = kNothing;
  for (const EnumeratedPath& path : paths) largest = std::max(largest, path.weight);
  if (largest == kNothing) return -kNothing;
  double sum = 0.0;
  for (const EnumeratedPath& path : paths) sum += std::exp(path.weight - largest);
  return 0.0 - (largest + std::log(sum));
}

}  // namespace transducer::reference
