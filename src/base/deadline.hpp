// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

namespace sluice::base {

/// Nanoseconds of the steady clock.
inline std::int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// A point in time after which a wait gives up.
class Deadline {
 public:
  static Deadline never() noexcept { return Deadline(kNever); }
  /// Negative durations never expire, as in the public options.
  static Deadline after(std::chrono::nanoseconds duration) noexcept {
    if (duration.count() < 0) return never();
    const std::int64_t now = now_ns();
    if (duration.count() > kNever - now) return never();
    return Deadline(now + duration.count());
  }

  bool is_never() const noexcept { return at_ns_ == kNever; }
  bool expired() const noexcept { return !is_never() && now_ns() >= at_ns_; }
  /// Nanoseconds left, never negative; the largest value for never().
  std::int64_t remaining_ns() const noexcept {
    if (is_never()) return kNever;
    const std::int64_t left = at_ns_ - now_ns();
    return left > 0 ? left : 0;
  }
  std::int64_t at_ns() const noexcept { return at_ns_; }
  /// Not negative.
  void put_off(std::int64_t by_ns) noexcept {
    at_ns_ = by_ns < kNever - at_ns_ ? at_ns_ + by_ns : kNever;
  }

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  explicit Deadline(std::int64_t at_ns) noexcept : at_ns_(at_ns) {}
  std::int64_t at_ns_;
};

}  // namespace sluice::base
