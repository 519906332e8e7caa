// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

/// The largest shapes that Sluice accepts; the CUDA engine accepts less (16 ranks, and 512 tokens in latency mode). All are
/// checked when ranks join or a communicator is created (biases and shared results in each combine), so
/// that fixed-size arrays and 32-bit counters inside the library cannot overflow.
namespace sluice {

/// Ranks of one world (R).
inline constexpr int kMaxRanks = 256;
/// Experts of one communicator (E), and of one rank (L).
inline constexpr int kMaxExperts = 4096;
/// Routes of one token (K). Answered routes travel as a 32-bit mask.
inline constexpr int kMaxTopk = 32;
/// Tokens of one rank in one call (M).
inline constexpr int kMaxTokens = 1 << 20;
/// Elements of one row (H). H is a multiple of kHiddenMultiple.
inline constexpr int kMaxHidden = 1 << 16;
inline constexpr int kHiddenMultiple = 16;
/// Biases of one combine, and shared results of one combine.
inline constexpr int kMaxBiases = 2;
inline constexpr int kMaxSharedResults = 8;
/// Operations of one kind that may be in flight at once (d).
inline constexpr int kMaxInFlight = 4;

}  // namespace sluice
