// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "case.hpp"

namespace sluice::bench {

/// Rows of one token: how many are sent, and to which places of the send buffer.
///
/// per_route: one row per (token, k). In expert layouts rows are sent in order (expert, token), so
/// that a receiver who knows the counts per expert can place them without looking at them; in
/// rank_major in order (rank, token, k), which is the received layout itself.
/// per_rank: one row per (token, rank), in order (rank, token).
class SendOrder {
 public:
  enum class Rows { per_route, per_rank };

  SendOrder(const Case& bench_case, Rows rows);

  /// Works out places and counts for one routing [T, K]; nothing is allocated.
  void compute(const std::int32_t* ids);

  /// Place of every route's row in the send buffer, [T, K]; routes of one token to one rank share a
  /// place in per_rank.
  const std::vector<std::int32_t>& places() const noexcept { return places_; }
  /// Rows to every rank, [R], and the first of them.
  const std::vector<int>& rows() const noexcept { return rows_; }
  const std::vector<int>& firsts() const noexcept { return firsts_; }
  /// What a receiver must know: per rank `group_count()` numbers, of rows per local expert in
  /// expert layouts, else the rows.
  const std::vector<std::int32_t>& announced() const noexcept { return announced_; }
  int group_count() const noexcept { return groups_; }
  int rank_of(std::int32_t expert) const noexcept {
    return rank_of_[static_cast<std::size_t>(expert)];
  }

 private:
  void compute_by_expert(const std::int32_t* ids);
  void compute_by_rank(const std::int32_t* ids);

  int ranks_, tokens_, top_k_;
  bool by_expert_, per_rank_;
  int groups_;
  std::vector<int> rank_of_;   // [E]
  std::vector<int> group_of_;  // [E] index of the expert's count in announced_.
  std::vector<std::int32_t> places_;
  std::vector<std::int32_t> next_;  // [R * groups]
  std::vector<std::int32_t> last_;  // [R] per_rank: last token that has a row for the rank.
  std::vector<std::int32_t> announced_;
  std::vector<int> rows_, firsts_;
};

}  // namespace sluice::bench
