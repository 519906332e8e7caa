// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>

#include "sluice/types.hpp"

namespace sluice::routing {

/// Where received rows lie. Equal on all ranks.
struct RowPlacement {
  Layout layout = Layout::expert_major;
  /// expert_major: segments start at multiples of this.
  std::int64_t alignment = 1;
  /// Rows stored in all (rank_major, expert_major; 0 = no limit) or per expert (expert_slab).
  std::int64_t capacity = 0;
};

/// The records that a rank received, in order (source rank, token), and what is computed of them.
/// local_ids [records, K] is input; the rest is output.
struct RowPlan {
  std::int64_t records = 0;
  int top_k = 0;
  const std::int32_t* local_ids = nullptr;

  std::span<std::int32_t> counts;          // [L], true numbers of rows
  std::span<std::int32_t> aligned_counts;  // [L]
  std::span<std::int64_t> offsets;         // [L + 1]
  std::int32_t* route_rows = nullptr;      // [records, K], see Handle::route_rows
};

struct RowTotals {
  std::int64_t rows = 0;      // Rows of the received tensor, padding included.
  std::int64_t overflow = 0;  // Rows numbered beyond the capacity.
};

/// Numbers the rows: order (source, token) in rank_major, (expert, source, token) otherwise, never
/// arrival order. Pure arithmetic over the records.
RowTotals plan_rows(const RowPlacement& placement, const RowPlan& plan);

}  // namespace sluice::routing
