// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sluice/status.hpp"

namespace sluice::routing {

/// Which rank owns which expert, and under which local number: the experts of a rank, ascending by
/// global id, are its local experts 0, 1, ...
class ExpertMap {
 public:
  ExpertMap() = default;

  /// `expert_to_rank` has one entry per expert, or is empty: then ranks own contiguous blocks and
  /// the first (experts mod ranks) ranks own one expert more.
  static Result<ExpertMap> create(int experts, int ranks,
                                  std::span<const std::int32_t> expert_to_rank);

  int experts() const noexcept { return static_cast<int>(rank_of_.size()); }
  int ranks() const noexcept { return static_cast<int>(begin_.size()) - 1; }
  int rank_of(std::int32_t expert) const noexcept {
    return rank_of_[static_cast<std::size_t>(expert)];
  }
  int local_of(std::int32_t expert) const noexcept {
    return local_of_[static_cast<std::size_t>(expert)];
  }
  /// Global ids of the experts of `rank`, ascending.
  std::span<const std::int32_t> experts_of(int rank) const noexcept {
    const auto r = static_cast<std::size_t>(rank);
    return std::span(owned_).subspan(begin_[r], begin_[r + 1] - begin_[r]);
  }
  int local_experts(int rank) const noexcept { return static_cast<int>(experts_of(rank).size()); }
  int max_local_experts() const noexcept { return max_local_; }
  std::span<const std::int32_t> expert_to_rank() const noexcept { return rank_of_; }

 private:
  std::vector<std::int32_t> rank_of_;
  std::vector<std::int32_t> local_of_;
  std::vector<std::int32_t> owned_;  // Experts grouped by rank.
  std::vector<std::size_t> begin_;   // First entry of a rank in owned_, R + 1 entries.
  int max_local_ = 0;
};

}  // namespace sluice::routing
