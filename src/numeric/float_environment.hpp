// SPDX-License-Identifier: MIT
#pragma once

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <cfenv>
#endif
#include <cstdint>

namespace sluice::numeric {

/// While one lives, this thread computes as docs/number-formats.md demands: nearest even, no
/// flush to zero (of results or of operands), no traps. The caller may have set any mode (one
/// library built with -ffast-math is enough to turn flushing on); the destructor restores it.
///
/// When the mode is right already, the cost is one read of the control register. Otherwise the
/// caller's exception flags come back as they were. Not to be moved between threads.
class FloatEnvironment {
 public:
  FloatEnvironment() noexcept;
  ~FloatEnvironment();
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

  /// Whether this thread's mode is right now.
  static bool active() noexcept;

 private:
#if defined(__x86_64__) || defined(__aarch64__)
  std::uint64_t caller_control_ = 0;
#else
  std::fenv_t caller_environment_{};
#endif
  bool changed_ = false;
};

}  // namespace sluice::numeric
