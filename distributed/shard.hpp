// SPDX-License-Identifier: Apache-2.0
//
// Which rank owns which utterance. The cost of an utterance is its number of lattice rows, T (U + 1):
// scores, lattice and gradient all are proportional to it. Longest first onto the least loaded rank
// (Graham, "Bounds on multiprocessing timing anomalies", 1969): the largest load is at most
// 4/3 - 1 / (3 ranks) of the best possible one. Pure and deterministic; work N (log N + log ranks).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace transducer::distributed {

/// T (U + 1).
std::int64_t lattice_rows(std::int64_t frames, std::int64_t labels);

/// The rank of each item. Equal costs go in order of their number, equal loads to the rank with the fewest
/// items, then to the lowest. `loads` is what each rank has to do already; empty: nothing. Throws InvalidArgument
/// for a negative cost, fewer than one rank, or loads that are not one per rank.
std::vector<int> shard(std::span<const std::int64_t> costs, int ranks,
                       std::span<const std::int64_t> loads = {});

/// The largest load over the mean load; 1 where there is nothing to do.
double imbalance(std::span<const std::int64_t> costs, std::span<const int> owners, int ranks);

}  // namespace transducer::distributed
