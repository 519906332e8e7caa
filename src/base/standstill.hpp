// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/deadline.hpp"

namespace sluice::base {

/// For a wait that looks at the clock again and again: what of the time must not count, since the waiter stood still itself, with its
/// process or its machine, and perhaps all others with it (a job that is suspended, a virtual machine that is moved).
class Standstill {
 public:
  /// `timeout`: of the wait. It stood still if half of it passed between two looks (but 100 ms at least, and no more than a second).
  explicit Standstill(std::chrono::nanoseconds timeout) noexcept
      : looked_ns_(now_ns()),
        least_ns_(std::clamp<std::int64_t>(timeout.count() / 2, 100'000'000, 1'000'000'000)) {}

  /// Nanoseconds by which to put the wait's end off. Every look costs the wait something, so that it ends.
  std::int64_t look(std::int64_t now_ns) noexcept {
    const std::int64_t gap_ns = now_ns - looked_ns_;
    looked_ns_ = now_ns;
    return gap_ns > least_ns_ ? gap_ns - kCountedNs : 0;
  }

 private:
  static constexpr std::int64_t kCountedNs = 20'000'000;
  std::int64_t looked_ns_;
  std::int64_t least_ns_;
};

}  // namespace sluice::base
