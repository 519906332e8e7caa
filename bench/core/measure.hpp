// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <vector>

#include "board.hpp"
#include "case.hpp"
#include "contestant.hpp"
#include "progress.hpp"

namespace sluice::bench {

using Contestants = std::vector<std::unique_ptr<Contestant>>;

/// Series of all contestants together, and where one contestant's begin.
int series_count(const Contestants& contestants);
int series_of(const Contestants& contestants, std::size_t contestant);

/// Warm-up, then timed iterations. In every iteration every contestant runs each of its operations
/// after a common start, in alternating order of contestants, on the same data set; a sample is the
/// time from the common start to this rank's return, in microseconds. Collective.
Status measure(Board& board, const Case& bench_case, const Contestants& contestants,
               Progress& progress);

/// Runs and verifies every contestant on every data set; leaves the counts on the board. Collective.
Status verify(Board& board, const Case& bench_case, const Contestants& contestants,
              Progress& progress);

/// Whose pairs are timed one by one, and whose combines alone, if any are.
std::size_t singles_contestant(const Contestants& contestants) noexcept;

/// Per iteration the longest time of any rank: the time of the operation.
std::vector<double> longest_of_ranks(const Board& board, int series);
/// Of combines alone: behind all others.
int combines_series(const Contestants& contestants);
/// The same of the pairs that were timed one by one.
std::vector<double> longest_singles(const Board& board);

}  // namespace sluice::bench
