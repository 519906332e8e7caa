// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "reference/reference.hpp"

namespace sluice::fuzz {

/// Hands out small numbers from a fuzzer's bytes; zeros when they run out.
class Bytes {
 public:
  explicit Bytes(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  std::uint8_t byte() {
    if (at_ == bytes_.size()) return 0;
    return bytes_[at_++];
  }
  /// From `low` to `high`, both included.
  int between(int low, int high) { return low + byte() % (high - low + 1); }
  bool coin() { return byte() % 2 == 1; }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

/// Any bytes make a legal problem: small shapes, but with everything that routing knows of: uneven
/// and mapped experts, masks, duplicates, -1, bad ids, zero tokens, layouts, alignment, capacity.
reference::DispatchProblem make_problem(Bytes& bytes);

}  // namespace sluice::fuzz
