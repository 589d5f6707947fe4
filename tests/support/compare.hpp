// SPDX-License-Identifier: Apache-2.0
//
// Compares two arrays and says where they differ most. NaNs and infinities must stand in the same
// places, with the same sign, before any norm is taken; what is left is measured in every norm:
//
//   max |g - e|,   max |g - e| / max(|e|, 1),   |g - e|_2 / |e|_2
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace transducer::testing {

struct Comparison {
  bool same_size = true;
  bool special_match = true;     ///< NaNs and infinities stand in the same places
  double max_absolute = 0.0;     ///< max |g - e|
  double max_relative = 0.0;     ///< max |g - e| / max(|e|, 1)
  double euclidean = 0.0;        ///< |g - e|_2 / |e|_2; absolute where e is 0
  std::size_t worst = 0;         ///< index of max_relative, or of the first special mismatch
  double got = 0.0, want = 0.0;  ///< the values there

  std::string text() const {
    std::ostringstream out;
    out.precision(17);
    if (!same_size) return "sizes differ";
    out << (special_match ? "worst" : "NaN or infinity differs") << " at [" << worst << "]: got "
        << got << ", expected " << want << " (max |g - e| = " << max_absolute
        << ", relative = " << max_relative << ", euclidean = " << euclidean << ")";
    return out.str();
  }
};

inline Comparison compare(std::span<const double> got, std::span<const double> want) {
  Comparison c;
  c.same_size = got.size() == want.size();
  double squares = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; c.same_size && i < got.size(); ++i) {
    if (!std::isfinite(got[i]) || !std::isfinite(want[i])) {
      if ((std::isnan(got[i]) && std::isnan(want[i])) || got[i] == want[i]) continue;
      c.special_match = false;
      c.worst = i;
      c.got = got[i];
      c.want = want[i];
      return c;
    }
    const double error = std::abs(got[i] - want[i]);
    const double relative = error / std::max(std::abs(want[i]), 1.0);
    squares += error * error;
    norm += want[i] * want[i];
    c.max_absolute = std::max(c.max_absolute, error);
    if (i == 0 || relative > c.max_relative) {
      c.max_relative = std::max(c.max_relative, relative);
      c.worst = i;
      c.got = got[i];
      c.want = want[i];
    }
  }
  c.euclidean = std::sqrt(squares) / (norm > 0.0 ? std::sqrt(norm) : 1.0);
  return c;
}

/// Empty if `got` equals `want` to `tolerance` relative to max(|want|, 1); else what differs.
inline std::string difference(const std::string& what, std::span<const double> got,
                              std::span<const double> want, double tolerance) {
  const Comparison c = compare(got, want);
  const bool equal = c.same_size && c.special_match && c.max_relative <= tolerance;
  return equal ? std::string() : what + ": " + c.text();
}

inline std::string difference(const std::string& what, double got, double want, double tolerance) {
  return difference(what, std::span(&got, 1), std::span(&want, 1), tolerance);
}

/// max |got - want| over the largest |want|, or over `least` if that is larger; infinite unless
/// NaNs and infinities agree.
inline double relative_error(const std::vector<double>& got, const std::vector<double>& want,
                             double least = 0.0) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double largest = least;
  double worst = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if ((std::isnan(got[i]) && std::isnan(want[i])) || got[i] == want[i]) {
      if (std::isfinite(want[i])) largest = std::max(largest, std::abs(want[i]));
      continue;
    }
    if (!std::isfinite(got[i]) || !std::isfinite(want[i]))
      return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(want[i]));
    worst = std::max(worst, std::abs(got[i] - want[i]));
  }
  return worst == 0.0 ? 0.0 : worst / largest;
}

/// Empty if both hold the same bits, any NaN counting as any other; else what differs.
inline std::string bit_difference(const std::string& what, std::span<const double> got,
                                  std::span<const double> want) {
  if (got.size() != want.size()) return what + ": sizes differ";
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (std::bit_cast<std::uint64_t>(got[i]) == std::bit_cast<std::uint64_t>(want[i])) continue;
    std::ostringstream out;
    out.precision(17);
    out << what << ": not the same bits at [" << i << "]: got " << got[i] << ", expected "
        << want[i];
    return out.str();
  }
  return {};
}

}  // namespace transducer::testing
