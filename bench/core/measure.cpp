// SPDX-License-Identifier: MIT
#include "measure.hpp"

#include <algorithm>

#include "base/deadline.hpp"

namespace sluice::bench {
namespace {

/// One contestant's part of one iteration. `sample` < 0: warm-up, nothing is kept.
Status run_contestant(Board& board, const Contestants& contestants, std::size_t which, int set,
                      int sample) {
  Contestant& contestant = *contestants[which];
  const int operations = static_cast<int>(contestant.operations().size());
  for (int operation = 0; operation < operations; ++operation) {
    const Result<std::int64_t> start_ns = board.pass();
    if (!start_ns) return start_ns.status();
    if (Status status = contestant.run(operation, set); !status) {
      return Status(status.code(),
                    contestant.name() + ", " +
                        contestant.operations()[static_cast<std::size_t>(operation)] + ": " +
                        status.message());
    }
    const std::int64_t end_ns = base::now_ns();
    if (sample < 0) continue;
    const int series = series_of(contestants, which) + operation;
    board.samples(board.rank(), series)[static_cast<std::size_t>(sample)] =
        static_cast<double>(end_ns - *start_ns) * 1e-3;
  }
  return {};
}

/// Item by item the largest of all ranks' numbers.
template <typename NumbersOf>
std::vector<double> longest(const Board& board, const NumbersOf& numbers_of) {
  const std::span<double> first = numbers_of(0);
  std::vector<double> longest(first.begin(), first.end());
  for (int rank = 1; rank < board.ranks(); ++rank) {
    const std::span<double> numbers = numbers_of(rank);
    for (std::size_t i = 0; i < longest.size(); ++i) longest[i] = std::max(longest[i], numbers[i]);
  }
  return longest;
}

}  // namespace

int series_of(const Contestants& contestants, std::size_t contestant) {
  int series = 0;
  for (std::size_t i = 0; i < contestant; ++i) {
    series += static_cast<int>(contestants[i]->operations().size());
  }
  return series;
}

int series_count(const Contestants& contestants) {
  return series_of(contestants, contestants.size());
}

Status measure(Board& board, const Case& bench_case, const Contestants& contestants,
               Progress& progress) {
  const std::size_t count = contestants.size();
  for (int iteration = -bench_case.warmup; iteration < bench_case.iterations; ++iteration) {
    progress.tick("measuring", iteration, bench_case.iterations);
    if (iteration == 0) {
      for (const std::unique_ptr<Contestant>& contestant : contestants) {
        contestant->start_counting();
      }
    }
    const int set = (iteration + bench_case.warmup) % bench_case.sets;
    for (std::size_t turn = 0; turn < count; ++turn) {
      const std::size_t which = iteration % 2 == 0 ? turn : count - 1 - turn;
      if (Status status = run_contestant(board, contestants, which, set, iteration); !status) {
        return status;
      }
    }
  }
  RankRecord& record = board.record(board.rank());
  for (std::size_t which = 0; which < count; ++which) {
    const Traffic traffic = contestants[which]->traffic();
    record.dispatch_wire_bytes[which] = traffic.dispatch_bytes;
    record.combine_wire_bytes[which] = traffic.combine_bytes;
  }
  // Nobody goes on to disturb a rank that is still being timed.
  const Result<std::int64_t> done = board.pass();
  return done ? Status() : done.status();
}

Status verify(Board& board, const Case& bench_case, const Contestants& contestants,
              Progress& progress) {
  RankRecord& record = board.record(board.rank());
  for (std::size_t which = 0; which < contestants.size(); ++which) {
    for (int set = 0; set < bench_case.sets; ++set) {
      progress.tick("verifying", set, bench_case.sets);
      // Without a common start a fast rank would wait for slow ones inside the operation, and the
      // operation's deadline would have to cover the time of a check.
      const Result<std::int64_t> start_ns = board.pass();
      if (!start_ns) return start_ns.status();
      const Result<std::int64_t> wrong = contestants[which]->check(set);
      if (!wrong) return wrong.status();
      record.wrong[which] += *wrong;
    }
  }
  const Result<std::int64_t> done = board.pass();
  return done ? Status() : done.status();
}

std::size_t singles_contestant(const Contestants& contestants) noexcept {
  std::size_t which = 0;
  while (which < contestants.size() && contestants[which]->way() != "graph") ++which;
  return which;
}

int combines_series(const Contestants& contestants) {
  return series_count(contestants);
}

std::vector<double> longest_of_ranks(const Board& board, int series) {
  return longest(board, [&](int rank) { return board.samples(rank, series); });
}

std::vector<double> longest_singles(const Board& board) {
  return longest(board, [&](int rank) { return board.singles(rank); });
}

}  // namespace sluice::bench
