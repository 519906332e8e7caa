// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "case.hpp"
#include "data.hpp"
#include "distribution.hpp"
#include "placement.hpp"

namespace sluice::bench {

/// Everything random of one run, the same on every rank: the routings of all sets, where their
/// rows belong, and the noise that x and y are cut from.
struct Workload {
  Case bench_case;
  Noise noise;
  std::vector<Routing> routings;      ///< [sets]
  std::vector<Placement> placements;  ///< [sets]

  explicit Workload(const Case& from);

  /// This rank's part of a set's routing: [T, K].
  const std::int32_t* ids(int set, int rank) const noexcept;
  const float* weights(int set, int rank) const noexcept;
  /// Index of (rank, token 0, k 0) in the [R, T, K] arrays.
  std::size_t route_at(int rank) const noexcept;
  /// Routes over all ranks, mean of the sets, of which `counts(source, owner)`.
  template <typename Counts>
  double mean_routes(Counts&& counts) const {
    const std::size_t own =
        static_cast<std::size_t>(bench_case.tokens) * static_cast<std::size_t>(bench_case.top_k);
    std::int64_t routes = 0;
    for (const Routing& routing : routings) {
      for (std::size_t at = 0; at < routing.ids.size(); ++at) {
        if (routing.ids[at] < 0) continue;
        const int source = static_cast<int>(at / own);
        routes += counts(source, bench_case.rank_of_expert(routing.ids[at])) ? 1 : 0;
      }
    }
    return static_cast<double>(routes) / static_cast<double>(routings.size());
  }
  /// The most rows that any set puts on `rank`: of rank_major, or of the expert layouts.
  std::int64_t filled_rows_max(int rank) const noexcept;
  /// Refuses sets whose rows do not fit into the slabs: they could not be compared with a peer.
  Status check_capacity() const;
};

}  // namespace sluice::bench
