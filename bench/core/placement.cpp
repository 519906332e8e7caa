// SPDX-License-Identifier: MIT
#include "placement.hpp"

#include <algorithm>

namespace sluice::bench {
namespace {

std::size_t index(int value) {
  return static_cast<std::size_t>(value);
}

void place_by_rank(const Case& bench_case, const Routing& routing, Placement& placement) {
  std::size_t at = 0;
  std::vector<int> seen(index(bench_case.ranks), -1);
  for (int token = 0; token < bench_case.ranks * bench_case.tokens; ++token) {
    for (int k = 0; k < bench_case.top_k; ++k, ++at) {
      if (routing.ids[at] < 0) continue;
      const std::size_t rank = index(bench_case.rank_of_expert(routing.ids[at]));
      if (seen[rank] != token) ++placement.records[rank];
      seen[rank] = token;
      if (bench_case.layout == Layout::rank_major) placement.row[at] = placement.records[rank] - 1;
    }
  }
}

void place_by_expert(const Case& bench_case, const Routing& routing, Placement& placement) {
  std::vector<std::int64_t> next(index(bench_case.experts));
  for (int rank = 0; rank < bench_case.ranks; ++rank) {
    std::int64_t first = 0;
    for (int l = 0; l < bench_case.local_experts(rank); ++l) {
      const std::size_t expert = index(bench_case.first_expert(rank) + l);
      const bool slab = bench_case.layout == Layout::expert_slab;
      next[expert] = slab ? l * bench_case.slab_rows_or_default() : first;
      first += placement.expert_counts[expert];
    }
  }
  for (std::size_t at = 0; at < routing.ids.size(); ++at) {
    if (routing.ids[at] >= 0) placement.row[at] = next[index(routing.ids[at])]++;
  }
}

}  // namespace

Placement Placement::make(const Case& bench_case, const Routing& routing) {
  Placement placement;
  placement.row.resize(routing.ids.size());
  placement.expert_counts.resize(index(bench_case.experts));
  placement.records.resize(index(bench_case.ranks));
  placement.expert_rows.resize(index(bench_case.ranks));
  for (const std::int32_t id : routing.ids) {
    if (id >= 0) ++placement.expert_counts[index(id)];
  }
  for (int expert = 0; expert < bench_case.experts; ++expert) {
    const std::int64_t count = placement.expert_counts[index(expert)];
    placement.expert_rows[index(bench_case.rank_of_expert(expert))] += count;
    if (bench_case.layout == Layout::expert_slab) {
      placement.overflow_rows +=
          std::max<std::int64_t>(0, count - bench_case.slab_rows_or_default());
    }
  }
  place_by_rank(bench_case, routing, placement);
  if (bench_case.layout != Layout::rank_major) place_by_expert(bench_case, routing, placement);
  return placement;
}

std::int64_t layout_rows(const Case& bench_case, int rank) {
  const std::int64_t tokens = std::int64_t{bench_case.ranks} * bench_case.tokens;
  switch (bench_case.layout) {
    case Layout::rank_major: return tokens;
    case Layout::expert_slab:
      return bench_case.local_experts(rank) * bench_case.slab_rows_or_default();
    case Layout::expert_major: break;
  }
  return tokens * std::min(bench_case.top_k, std::max(1, bench_case.local_experts(rank)));
}

}  // namespace sluice::bench
