// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "row_space.hpp"

namespace sluice::bench {

/// Received rows of one rank: a contiguous layout, or records with a stride.
struct RowsView {
  std::byte* rows = nullptr;
  std::size_t row_stride = 0;
  std::byte* scales = nullptr;  ///< Null where the codec has none.
  std::size_t scale_stride = 0;
};

/// Overwrites the rows that a set will fill, and one row after each piece of them.
void poison_rows(const Workload& workload, const RowSpace& space, int set, int rank,
                 const RowsView& view);
/// Values of the received rows and scales that differ from those that a single process works out,
/// plus those written outside, unless other sets were written as well.
std::int64_t count_wrong_rows(const Workload& workload, const RowSpace& space, int set, int rank,
                              const RowsView& view, bool alone = true);

/// The order of a combine's sums; see docs/benchmarking.md.
enum class SumOrder : std::uint8_t {
  rank,    ///< A sum per rank, encoded, then ranks ascending.
  single,  ///< One chain over k.
  node,    ///< As rank within a node, encoded again, then nodes ascending.
};

void poison_output(const Workload& workload, std::byte* out);
/// Values of out, bf16 [T, H], that differ in any bit from a double loop over tokens and routes.
std::int64_t count_wrong_output(const Workload& workload, const RowSpace& space, int set, int rank,
                                SumOrder order, const std::byte* out);

}  // namespace sluice::bench
