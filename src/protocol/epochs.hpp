// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "base/mutants.hpp"

/// The arithmetic of epochs. Epochs of a kind count from 1 and are equal on all ranks.
namespace sluice::protocol {

/// Banks for d operations of a kind in flight: with B = 2d + 1 the guard never fires in lock-step.
/// A rank that sends epoch m has received epoch m - d, so every peer has sent m - d and, before
/// that, told what it had read then: at least m - 2d. Epoch m - B = m - 2d - 1 is older than that.
constexpr int banks_for(int in_flight) noexcept {
  return 2 * in_flight + 1;
}

inline int bank_of(std::uint64_t epoch, int banks) noexcept {
  if (base::mutant(base::Mutant::two_banks)) return static_cast<int>(epoch % 2);
  return static_cast<int>(epoch % static_cast<std::uint64_t>(banks));
}

/// Throughput: the stage of an operation's rows.
inline int stage_of(std::uint64_t epoch, int stages) noexcept {
  if (base::mutant(base::Mutant::stage_not_rotated)) return 0;
  return static_cast<int>(epoch % static_cast<std::uint64_t>(stages));
}

/// What every receiver must have read before epoch `epoch` may overwrite what was sent `depth`
/// epochs ago; 0: nothing. depth is the number of banks, or of stages where rows are staged.
inline std::uint64_t guard_epoch(std::uint64_t epoch, int depth) noexcept {
  if (base::mutant(base::Mutant::guard_skipped)) return 0;
  auto reach = static_cast<std::uint64_t>(depth);
  if (base::mutant(base::Mutant::guard_late)) ++reach;
  return epoch > reach ? epoch - reach : 0;
}

}  // namespace sluice::protocol
