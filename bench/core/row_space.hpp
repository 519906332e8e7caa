// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "workload.hpp"

namespace sluice::bench {

/// Where received rows lie on every rank, and with them the expert results y, which have the same
/// place: one contestant's view of the workload.
class RowSpace {
 public:
  /// The layout of the case, as Sluice defines it.
  static RowSpace of_layout(const Workload& workload);
  /// rank_major with one row per route, order (source rank, token, k): what a sender of one row per
  /// route delivers.
  static RowSpace of_routes(const Workload& workload);

  const Placement& placement(int set) const noexcept {
    return placements_[static_cast<std::size_t>(set)];
  }
  /// How the sets of y lie in the memory of `rank`.
  const Pool& pool(int rank) const noexcept { return pools_[static_cast<std::size_t>(rank)]; }
  /// The expert's result for route (source, token, k), wherever its rank is.
  const std::uint16_t* y(int set, int source, int token, int k) const noexcept;
  /// Copies the noise into the used rows of `memory`, which holds pool(rank).total_rows() rows.
  void fill_y(int rank, std::byte* memory) const;

 private:
  RowSpace(const Workload& workload, std::vector<Placement> placements,
           std::vector<std::int64_t> rows);

  const Workload* workload_;
  std::vector<Placement> placements_;
  std::vector<Pool> pools_;
};

/// How the sets of x lie in every rank's memory.
Pool x_pool(const Workload& workload);
/// Row `token` of a set of `rank`.
const std::uint16_t* x_row(const Workload& workload, int set, int rank, int token) noexcept;
/// Copies the noise into `memory`, which holds x_pool().total_rows() rows.
void fill_x(const Workload& workload, int rank, std::byte* memory);

}  // namespace sluice::bench
