// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "workload.hpp"

namespace sluice::bench {

/// One rank's part of one set, where one record per (token, rank) is exchanged by counts that are
/// known beforehand: what NCCL asks for, and what only a benchmark can have for nothing.
///
/// Records leave in the order (destination, token), own ones excluded, and lie in the order
/// (source, token) where they arrive, own ones included: the row order of rank_major.
struct ExchangePlan {
  /// Records of every rank, in order.
  struct Side {
    std::vector<std::int64_t> first;  ///< [R]
    std::vector<std::int64_t> count;  ///< [R]
    std::int64_t total = 0;
  };

  Side out;  ///< By destination; nothing for the own rank.
  Side in;   ///< By source.
  /// [T, R] The number of a token's record: among those that leave, or at the own rank among those
  /// that arrive; -1: the token does not go there.
  std::vector<std::int32_t> place;
  /// [in.total, row_width] The rows of a record in the layout of the case; -1: none.
  std::vector<std::int32_t> row;

  static ExchangePlan make(const Workload& workload, int set, int rank);
  /// Rows that a record may have: one in rank_major, else one per route.
  static int row_width(const Case& bench_case) noexcept;
};

}  // namespace sluice::bench
