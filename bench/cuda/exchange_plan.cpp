// SPDX-License-Identifier: MIT
#include "exchange_plan.hpp"

#include "numbers.hpp"

namespace sluice::bench {
namespace {

bool goes_to(const Workload& workload, int set, int source, int token, int rank) {
  const Case& bench_case = workload.bench_case;
  const std::int32_t* ids = workload.ids(set, source) + index(token) * index(bench_case.top_k);
  for (int k = 0; k < bench_case.top_k; ++k) {
    if (bench_case.rank_of_expert(ids[k]) == rank) return true;
  }
  return false;
}

/// The rows of one record from `source` at `rank`.
void append_rows(const Workload& workload, int set, int source, int token, int rank,
                 std::vector<std::int32_t>& row) {
  const Case& bench_case = workload.bench_case;
  const std::int32_t* ids = workload.ids(set, source);
  const Placement& placement = workload.placements[index(set)];
  for (int k = 0; k < bench_case.top_k; ++k) {
    const std::size_t at = index(token) * index(bench_case.top_k) + index(k);
    const bool here = bench_case.rank_of_expert(ids[at]) == rank;
    row.push_back(here ? static_cast<std::int32_t>(placement.row[workload.route_at(source) + at])
                       : -1);
  }
}

}  // namespace

int ExchangePlan::row_width(const Case& bench_case) noexcept {
  return bench_case.layout == Layout::rank_major ? 1 : bench_case.top_k;
}

ExchangePlan ExchangePlan::make(const Workload& workload, int set, int rank) {
  const Case& bench_case = workload.bench_case;
  const int ranks = bench_case.ranks;
  ExchangePlan plan;
  plan.place.assign(index(bench_case.tokens) * index(ranks), -1);
  for (int source = 0; source < ranks; ++source) {
    plan.in.first.push_back(plan.in.total);
    for (int token = 0; token < bench_case.tokens; ++token) {
      if (!goes_to(workload, set, source, token, rank)) continue;
      const auto record = static_cast<std::int32_t>(plan.in.total++);
      if (source == rank) plan.place[index(token) * index(ranks) + index(rank)] = record;
      if (bench_case.layout == Layout::rank_major) {
        plan.row.push_back(record);
      } else {
        append_rows(workload, set, source, token, rank, plan.row);
      }
    }
    plan.in.count.push_back(plan.in.total - plan.in.first.back());
  }
  for (int destination = 0; destination < ranks; ++destination) {
    plan.out.first.push_back(plan.out.total);
    for (int token = 0; destination != rank && token < bench_case.tokens; ++token) {
      if (!goes_to(workload, set, rank, token, destination)) continue;
      plan.place[index(token) * index(ranks) + index(destination)] =
          static_cast<std::int32_t>(plan.out.total++);
    }
    plan.out.count.push_back(plan.out.total - plan.out.first.back());
  }
  return plan;
}

}  // namespace sluice::bench
