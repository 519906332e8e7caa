// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "board.hpp"
#include "case.hpp"
#include "contestant.hpp"

namespace sluice::bench {

/// What is timed of the raw network; docs/benchmarking.md says how.
enum class RawSeries : std::uint8_t {
  stream,          ///< Every rank puts a long piece to its rail peer on every other node.
  stream_busy,     ///< The same while a second thread of every rank copies memory.
  dispatch_bytes,  ///< Every rank puts to every other as many bytes as in a dispatch.
  combine_bytes,   ///< ... as in a combine.
  one_way_record,  ///< Half a round trip of one record between two rail peers.
  one_way_word,    ///< The same of 8 bytes.
  stage_out,       ///< Every rank copies as much as in a stream from its GPU to its host.
  stage_in,        ///< ... and back.
  bare_dispatch,  ///< Every rank brings as many bytes as in a dispatch from its GPU to others', in so many pieces (kBarePieces).
  bare_combine = bare_dispatch + 3,  ///< ... as in a combine.
};
inline constexpr std::array<int, 3> kBarePieces = {1, 2, 4};
inline constexpr int kRawSeries = static_cast<int>(RawSeries::bare_combine) + 3;
inline constexpr RawSeries bare_series(int operation, std::size_t way) noexcept {
  const auto first = operation == kDispatch ? RawSeries::bare_dispatch : RawSeries::bare_combine;
  return static_cast<RawSeries>(static_cast<std::size_t>(first) + way);
}

/// Where numbers about the network lie on the board: bytes that a rank puts to every rank in a dispatch and
/// in a combine, when its first put and last arrival were in each of so many, and its samples of the raw
/// network. Times are microseconds behind a common start.
class NetworkNumbers {
 public:
  /// What Board::Form::network has to be.
  static int count(const Case& bench_case) noexcept {
    return 2 * bench_case.ranks + (kRawSeries + kTimes) * rounds(bench_case);
  }
  /// Samples of a series. Enough for a median, and no longer than what the benchmark is for.
  static int rounds(const Case& bench_case) noexcept { return std::min(bench_case.iterations, 40); }

  NetworkNumbers(const Board& board, const Case& bench_case) noexcept
      : board_(board),
        ranks_(static_cast<std::size_t>(bench_case.ranks)),
        rounds_(static_cast<std::size_t>(rounds(bench_case))) {}

  /// [R], mean of the data sets. `operation`: kDispatch or kCombine.
  std::span<double> bytes_put(int rank, int operation) const noexcept {
    return board_.network(rank).subspan(static_cast<std::size_t>(operation) * ranks_, ranks_);
  }
  std::span<double> samples(int rank, RawSeries series) const noexcept {
    return rows(rank, static_cast<std::size_t>(series));
  }
  /// Of rounds of `operation`. Not above 0: nothing was put, or has arrived.
  std::span<double> first_put(int rank, int operation) const noexcept {
    return rows(rank, kRawSeries + 2 * static_cast<std::size_t>(operation));
  }
  std::span<double> last_arrival(int rank, int operation) const noexcept {
    return rows(rank, kRawSeries + 2 * static_cast<std::size_t>(operation) + 1);
  }

 private:
  /// First put and last arrival of a dispatch and of a combine.
  static constexpr int kTimes = 4;

  std::span<double> rows(int rank, std::size_t row) const noexcept {
    return board_.network(rank).subspan(2 * ranks_ + row * rounds_, rounds_);
  }

  const Board& board_;
  std::size_t ranks_;
  std::size_t rounds_;
};

}  // namespace sluice::bench
