// SPDX-License-Identifier: MIT
#include "routing/expert_map.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sluice/limits.hpp"

namespace sluice::routing {
namespace {

Status check(int experts, int ranks, std::span<const std::int32_t> expert_to_rank) {
  if (ranks < 1 || ranks > kMaxRanks) {
    return {StatusCode::invalid_argument,
            fmt::format("{} ranks, expected 1 to {}", ranks, kMaxRanks)};
  }
  if (experts < 1 || experts > kMaxExperts) {
    return {StatusCode::invalid_argument,
            fmt::format("experts = {}, expected 1 to {}", experts, kMaxExperts)};
  }
  if (!expert_to_rank.empty() && expert_to_rank.size() != static_cast<std::size_t>(experts)) {
    return {StatusCode::invalid_argument,
            fmt::format("expert_to_rank has {} entries, expected experts = {}",
                        expert_to_rank.size(), experts)};
  }
  for (std::size_t expert = 0; expert < expert_to_rank.size(); ++expert) {
    if (expert_to_rank[expert] < 0 || expert_to_rank[expert] >= ranks) {
      return {StatusCode::invalid_argument,
              fmt::format("expert_to_rank[{}] = {}, expected a rank from 0 to {}", expert,
                          expert_to_rank[expert], ranks - 1)};
    }
  }
  return {};
}

}  // namespace

Result<ExpertMap> ExpertMap::create(int experts, int ranks,
                                    std::span<const std::int32_t> expert_to_rank) {
  if (Status status = check(experts, ranks, expert_to_rank); !status.ok()) return status;

  ExpertMap map;
  map.rank_of_.assign(expert_to_rank.begin(), expert_to_rank.end());
  if (map.rank_of_.empty()) {
    const int base = experts / ranks;
    const int larger = experts % ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      const int owned = rank < larger ? base + 1 : base;
      map.rank_of_.insert(map.rank_of_.end(), static_cast<std::size_t>(owned), rank);
    }
  }
  map.local_of_.resize(map.rank_of_.size());
  map.begin_.push_back(0);
  for (int rank = 0; rank < ranks; ++rank) {
    std::int32_t local = 0;
    for (std::int32_t expert = 0; expert < experts; ++expert) {
      if (map.rank_of(expert) != rank) continue;
      map.local_of_[static_cast<std::size_t>(expert)] = local++;
      map.owned_.push_back(expert);
    }
    map.begin_.push_back(map.owned_.size());
    map.max_local_ = std::max<int>(map.max_local_, local);
  }
  return map;
}

}  // namespace sluice::routing
