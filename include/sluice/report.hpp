// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>

#include "sluice/limits.hpp"

namespace sluice {

/// A set of ranks: plain data, the same bytes on host and device.
struct RankSet {
  std::array<std::uint64_t, kMaxRanks / 64> words{};

  constexpr bool contains(int rank) const noexcept {
    return (words[static_cast<unsigned>(rank) / 64] >> (static_cast<unsigned>(rank) % 64)) & 1U;
  }
  constexpr void insert(int rank) noexcept {
    words[static_cast<unsigned>(rank) / 64] |= std::uint64_t{1}
                                               << (static_cast<unsigned>(rank) % 64);
  }
  constexpr void erase(int rank) noexcept {
    words[static_cast<unsigned>(rank) / 64] &=
        ~(std::uint64_t{1} << (static_cast<unsigned>(rank) % 64));
  }
  constexpr bool empty() const noexcept {
    for (const std::uint64_t word : words) {
      if (word != 0) return false;
    }
    return true;
  }
  friend constexpr bool operator==(const RankSet&, const RankSet&) = default;
};

/// What happened to one operation on this rank. Plain data. A route is one (token, k) decision; a
/// route is lost when its result did not come home.
struct Report {
  std::int64_t lost_routes = 0;    ///< combine: this rank's routes that no answer came for.
  std::int64_t bad_routes = 0;     ///< dispatch: ids outside [-1, E), counted as -1.
  std::int64_t overflow_rows = 0;  ///< dispatch: rows received beyond the capacity, not stored.
  std::int64_t wait_ns = 0;        ///< Time this rank waited for peers.
  RankSet missing;                 ///< Peers that were not heard of: dead, or past the deadline.
  RankSet refused;                 ///< Peers that refused their call: they took part with nothing.
  /// Peers that made another call, as their cells say (mode, codec, layout, alignment, capacity, handle, counts); their part
  /// was dropped.
  RankSet mismatched;
};

}  // namespace sluice
