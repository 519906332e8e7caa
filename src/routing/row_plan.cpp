// SPDX-License-Identifier: MIT
#include "routing/row_plan.hpp"

#include <algorithm>
#include <limits>

#include "base/mutants.hpp"
#include "sluice/handle.hpp"

namespace sluice::routing {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max() - 1;

// Whether a lower route of the record leads to the expert of route k.
bool is_duplicate(const std::int32_t* ids, int k) noexcept {
  if (base::mutant(base::Mutant::duplicate_twice)) return false;
  return std::find(ids, ids + k, ids[k]) != ids + k;
}

void count_rows(const RowPlan& plan) {
  std::fill(plan.counts.begin(), plan.counts.end(), 0);
  const std::int32_t* ids = plan.local_ids;
  for (std::int64_t record = 0; record < plan.records; ++record, ids += plan.top_k) {
    for (int k = 0; k < plan.top_k; ++k) {
      if (ids[k] >= 0 && !is_duplicate(ids, k)) ++plan.counts[static_cast<std::size_t>(ids[k])];
    }
  }
}

RowTotals place_rank_major(std::int64_t capacity, const RowPlan& plan) {
  const std::int32_t* ids = plan.local_ids;
  std::int32_t* rows = plan.route_rows;
  for (std::int64_t record = 0; record < plan.records; ++record) {
    const auto row = record < capacity ? static_cast<std::int32_t>(record) : Handle::kRowOverflow;
    for (int k = 0; k < plan.top_k; ++k) *rows++ = *ids++ >= 0 ? row : Handle::kRowAbsent;
  }
  const std::int64_t stored = std::min(plan.records, capacity);
  return {stored, plan.records - stored};
}

// Expert layouts. plan.offsets holds the first row of every expert; limit(expert) the first row
// number that is not stored any more.
template <typename Limit>
std::int64_t place_by_expert(const RowPlan& plan, std::span<std::int64_t> cursor, Limit limit) {
  std::int64_t overflow = 0;
  const std::int32_t* ids = plan.local_ids;
  std::int32_t* rows = plan.route_rows;
  for (std::int64_t record = 0; record < plan.records; ++record, ids += plan.top_k) {
    for (int k = 0; k < plan.top_k; ++k, ++rows) {
      if (ids[k] < 0) {
        *rows = Handle::kRowAbsent;
      } else if (is_duplicate(ids, k)) {
        *rows = Handle::kRowDuplicate;
      } else {
        const auto expert = static_cast<std::size_t>(ids[k]);
        const std::int64_t row = cursor[expert]++;
        const std::int64_t end =
            limit(expert) + (base::mutant(base::Mutant::capacity_off_by_one) ? 1 : 0);
        const bool stored = row < end;
        *rows = stored ? static_cast<std::int32_t>(row) : Handle::kRowOverflow;
        overflow += stored ? 0 : 1;
      }
    }
  }
  return overflow;
}

}  // namespace

RowTotals plan_rows(const RowPlacement& placement, const RowPlan& plan) {
  count_rows(plan);
  const std::size_t experts = plan.counts.size();
  const std::int64_t alignment = placement.layout == Layout::expert_major ? placement.alignment : 1;
  for (std::size_t expert = 0; expert < experts; ++expert) {
    const std::int64_t count = plan.counts[expert];
    plan.aligned_counts[expert] =
        static_cast<std::int32_t>((count + alignment - 1) / alignment * alignment);
  }
  const std::int64_t capacity = placement.capacity > 0 ? placement.capacity : kNoLimit;

  // offsets[e + 1] serves as the cursor of expert e while rows are numbered, so that no scratch
  // memory is needed: it starts at the expert's first row and is rewritten afterwards.
  const auto starts = [&](std::size_t shift) {
    std::int64_t row = 0;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      plan.offsets[expert + shift] = row;
      row += placement.layout == Layout::expert_slab ? placement.capacity
                                                     : plan.aligned_counts[expert];
    }
    return row;
  };
  const std::int64_t end = starts(1);
  const auto cursor = plan.offsets.subspan(1);

  RowTotals totals;
  if (placement.layout == Layout::rank_major) {
    totals = place_rank_major(capacity, plan);
  } else if (placement.layout == Layout::expert_slab) {
    totals.overflow = place_by_expert(plan, cursor, [&](std::size_t expert) {
      return static_cast<std::int64_t>(expert + 1) * placement.capacity;
    });
    totals.rows = end;
  } else {
    totals.overflow = place_by_expert(plan, cursor, [&](std::size_t) { return capacity; });
    totals.rows = std::min(end, capacity);
  }
  starts(0);
  plan.offsets[experts] = end;
  return totals;
}

}  // namespace sluice::routing
