// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "case.hpp"
#include "distribution.hpp"

namespace sluice::bench {

/// Where every route's row lies on its expert's rank, worked out from the definition of the layouts
/// and nothing of the library: what the check compares with.
struct Placement {
  std::vector<std::int64_t> row;            ///< [R, T, K]
  std::vector<std::int32_t> expert_counts;  ///< [E]
  std::vector<std::int64_t> records;        ///< [R] rows of rank_major.
  std::vector<std::int64_t> expert_rows;    ///< [R] rows of the expert layouts.
  std::int64_t overflow_rows = 0;           ///< Rows beyond a slab, over all ranks.

  static Placement make(const Case& bench_case, const Routing& routing);
};

/// Rows of the tensor that dispatch fills on `rank` in the worst case (without data).
std::int64_t layout_rows(const Case& bench_case, int rank);

/// Calls use(first, count) for the pieces of rank's tensor that a set fills.
template <typename Use>
void for_each_segment(const Case& bench_case, const Placement& placement, int rank, Use&& use) {
  const std::size_t at = static_cast<std::size_t>(rank);
  if (bench_case.layout == Layout::rank_major) {
    use(std::int64_t{0}, placement.records[at]);
  } else if (bench_case.layout == Layout::expert_major) {
    use(std::int64_t{0}, placement.expert_rows[at]);
  } else {
    for (int l = 0; l < bench_case.local_experts(rank); ++l) {
      const std::size_t expert = static_cast<std::size_t>(bench_case.first_expert(rank) + l);
      use(l * bench_case.slab_rows_or_default(), std::int64_t{placement.expert_counts[expert]});
    }
  }
}

}  // namespace sluice::bench
