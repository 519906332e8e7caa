// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "board.hpp"
#include "case.hpp"

namespace sluice::bench {

/// What is timed around a GEMM, for dispatch and for combine; docs/benchmarking.md says how.
enum class GemmPart : std::uint8_t {
  alone,    ///< The GEMM when both halves have ended.
  between,  ///< The GEMM between the halves.
  late,     ///< The same; every second rank sends half a GEMM later than the others.
  halves,   ///< Both halves, nothing between them.
  whole,    ///< Both halves and the GEMM between them.
  call,     ///< The operation as one call, alone.
  beside,   ///< The GEMM on a stream of its own, while such a call runs.
  with,     ///< That call.
  both,     ///< From their common begin until both have ended.
};
inline constexpr int kGemmParts = 9;
inline constexpr std::array<const char*, kGemmParts> kGemmPartNames = {
    "alone", "between", "late", "halves", "whole", "call", "beside", "with", "both"};

/// Place among the series of the GEMM. `operation`: kDispatch or kCombine.
constexpr int gemm_series(int operation, GemmPart part) {
  return operation * kGemmParts + static_cast<int>(part);
}

/// Ranks are late in turn. Only the GEMM of one that is not counts.
constexpr bool starts_late(int rank, int iteration) {
  return ((rank + iteration) & 1) != 0;
}

/// Of one operation: every part's medians, by rank.
struct GemmTimes {
  std::array<std::vector<double>, kGemmParts> us;

  const std::vector<double>& of(GemmPart part) const { return us[static_cast<std::size_t>(part)]; }
};

/// What a part takes beyond the GEMM alone, on the rank where that is most of it.
struct Excess {
  int rank = 0;
  double alone_us = 0.0, part_us = 0.0;

  double us() const noexcept { return part_us - alone_us; }
  double percent() const noexcept { return alone_us > 0.0 ? 100.0 * us() / alone_us : 0.0; }

  static Excess of(const std::vector<double>& alone_us, const std::vector<double>& part_us);
  static Excess of(const GemmTimes& times, GemmPart part, GemmPart base = GemmPart::alone) {
    return of(times.of(base), times.of(part));
  }
};

struct GemmResult {
  GemmSize size;
  std::string about;               ///< The library.
  std::array<GemmTimes, 2> times;  ///< Of kDispatch and kCombine.
  std::int64_t wrong = 0;

  /// From the series that begin with `first`.
  static GemmResult of(const Board& board, int first, const GemmSize& size);

  /// On the slowest rank.
  double tflops() const;
  /// The GEMM alone was timed twice, after dispatch and after combine: what of a slow-down is noise.
  double noise_percent() const;
};

}  // namespace sluice::bench
