// SPDX-License-Identifier: Apache-2.0
//
// Central differences of a function of an array, element by element:
//
//   d f / d x_i  ~  (f(x + h e_i) - f(x - h e_i)) / 2h
//
// The error is about h^2 f''' / 6 + 1e-16 f / h, so with h = 1e-5 some 1e-10 for costs near 10.
#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

namespace transducer::testing {

/// Elements that are not finite are not moved; their derivative is given as 0.
inline std::vector<double> central_differences(std::vector<double>& x,
                                               const std::function<double()>& f, double h = 1e-5) {
  std::vector<double> slope(x.size(), 0.0);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    if (!std::isfinite(at)) continue;
    x[i] = at + h;
    const double above = f();
    x[i] = at - h;
    const double below = f();
    x[i] = at;
    slope[i] = (above - below) / (2 * h);
  }
  return slope;
}

}  // namespace transducer::testing
