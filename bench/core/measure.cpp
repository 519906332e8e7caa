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

std::vector<double> longest_of_ranks(const Board& board, int series) {
  std::vector<double> longest(static_cast<std::size_t>(board.iterations()));
  for (int rank = 0; rank < board.ranks(); ++rank) {
    const std::span<double> samples = board.samples(rank, series);
    for (std::size_t i = 0; i < longest.size(); ++i) {
      longest[i] = std::max(longest[i], samples[i]);
    }
  }
  return longest;
}

}  // namespace sluice::bench
