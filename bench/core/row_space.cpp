// SPDX-License-Identifier: MIT
#include "row_space.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace sluice::bench {
namespace {

std::size_t bf16_row_bytes(const Workload& workload) {
  return static_cast<std::size_t>(workload.bench_case.hidden) * 2;
}

}  // namespace

RowSpace::RowSpace(const Workload& workload, std::vector<Placement> placements,
                   std::vector<std::int64_t> rows)
    : workload_(&workload), placements_(std::move(placements)) {
  const Case& bench_case = workload.bench_case;
  for (int rank = 0; rank < bench_case.ranks; ++rank) {
    std::int64_t used = 0;
    std::int64_t longest = 0;
    for (const Placement& placement : placements_) {
      std::int64_t filled = 0;
      for_each_segment(bench_case, placement, rank, [&](std::int64_t, std::int64_t count) {
        filled += count;
        longest = std::max(longest, count);
      });
      used = std::max(used, filled);
    }
    pools_.push_back(Pool::plan(rows[static_cast<std::size_t>(rank)], used,
                                bf16_row_bytes(workload), bench_case.sets));
    // Slabs are mostly empty: the sets fit into one another, each with rows of its own.
    const bool slabs = bench_case.layout == Layout::expert_slab;
    const std::int64_t share = slabs ? bench_case.slab_rows_or_default() / bench_case.sets : 0;
    if (slabs && longest <= share) pools_.back().stride = share;
  }
}

RowSpace RowSpace::of_layout(const Workload& workload) {
  std::vector<std::int64_t> rows;
  for (int rank = 0; rank < workload.bench_case.ranks; ++rank) {
    rows.push_back(layout_rows(workload.bench_case, rank));
  }
  return RowSpace(workload, workload.placements, std::move(rows));
}

RowSpace RowSpace::of_routes(const Workload& workload) {
  const Case& bench_case = workload.bench_case;
  std::vector<Placement> placements = workload.placements;
  for (std::size_t set = 0; set < placements.size(); ++set) {
    Placement& placement = placements[set];
    std::fill(placement.records.begin(), placement.records.end(), 0);
    for (std::size_t at = 0; at < placement.row.size(); ++at) {
      const int rank = bench_case.rank_of_expert(workload.routings[set].ids[at]);
      placement.row[at] = placement.records[static_cast<std::size_t>(rank)]++;
    }
  }
  const std::int64_t most = std::int64_t{bench_case.ranks} * bench_case.tokens * bench_case.top_k;
  return RowSpace(workload, std::move(placements),
                  std::vector<std::int64_t>(static_cast<std::size_t>(bench_case.ranks), most));
}

const std::uint16_t* RowSpace::y(int set, int source, int token, int k) const noexcept {
  const Case& bench_case = workload_->bench_case;
  const std::size_t at =
      workload_->route_at(source) +
      static_cast<std::size_t>(token) * static_cast<std::size_t>(bench_case.top_k) +
      static_cast<std::size_t>(k);
  const int rank =
      bench_case.rank_of_expert(workload_->routings[static_cast<std::size_t>(set)].ids[at]);
  return workload_->noise.row(Noise::Stream::y, rank,
                              pool(rank).first(set) + placement(set).row[at]);
}

void RowSpace::fill_y(int rank, std::byte* memory) const {
  const std::size_t bytes = bf16_row_bytes(*workload_);
  for (int set = 0; set < workload_->bench_case.sets; ++set) {
    for_each_segment(workload_->bench_case, placement(set), rank,
                     [&](std::int64_t first, std::int64_t count) {
                       for (std::int64_t i = 0; i < count; ++i) {
                         const std::int64_t row = pool(rank).first(set) + first + i;
                         std::memcpy(memory + static_cast<std::size_t>(row) * bytes,
                                     workload_->noise.row(Noise::Stream::y, rank, row), bytes);
                       }
                     });
  }
}

Pool x_pool(const Workload& workload) {
  const std::int64_t tokens = workload.bench_case.tokens;
  return Pool::plan(tokens, tokens, bf16_row_bytes(workload), workload.bench_case.sets);
}

const std::uint16_t* x_row(const Workload& workload, int set, int rank, int token) noexcept {
  return workload.noise.row(Noise::Stream::x, rank, x_pool(workload).first(set) + token);
}

void fill_x(const Workload& workload, int rank, std::byte* memory) {
  const std::size_t bytes = bf16_row_bytes(workload);
  for (std::int64_t row = 0; row < x_pool(workload).total_rows(); ++row) {
    std::memcpy(memory + static_cast<std::size_t>(row) * bytes,
                workload.noise.row(Noise::Stream::x, rank, row), bytes);
  }
}

}  // namespace sluice::bench
