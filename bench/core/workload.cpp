// SPDX-License-Identifier: MIT
#include "workload.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::bench {

Workload::Workload(const Case& from) : bench_case(from), noise(from.seed, from.hidden) {
  for (int set = 0; set < bench_case.sets; ++set) {
    routings.push_back(make_routing(bench_case, set));
    placements.push_back(Placement::make(bench_case, routings.back()));
  }
}

std::size_t Workload::route_at(int rank) const noexcept {
  return static_cast<std::size_t>(rank) * static_cast<std::size_t>(bench_case.tokens) *
         static_cast<std::size_t>(bench_case.top_k);
}

const std::int32_t* Workload::ids(int set, int rank) const noexcept {
  return routings[static_cast<std::size_t>(set)].ids.data() + route_at(rank);
}

const float* Workload::weights(int set, int rank) const noexcept {
  return routings[static_cast<std::size_t>(set)].weights.data() + route_at(rank);
}

std::int64_t Workload::filled_rows_max(int rank) const noexcept {
  std::int64_t most = 0;
  for (const Placement& placement : placements) {
    const std::size_t at = static_cast<std::size_t>(rank);
    most = std::max(most, bench_case.layout == Layout::rank_major ? placement.records[at]
                                                                  : placement.expert_rows[at]);
  }
  return most;
}

Status Workload::check_capacity() const {
  for (std::size_t set = 0; set < placements.size(); ++set) {
    if (placements[set].overflow_rows == 0) continue;
    return Status(
        StatusCode::invalid_argument,
        fmt::format("--slab-rows {} is too small: {} rows of data set {} do not fit",
                    bench_case.slab_rows_or_default(), placements[set].overflow_rows, set));
  }
  return {};
}

}  // namespace sluice::bench
