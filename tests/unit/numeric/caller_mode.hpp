// SPDX-License-Identifier: MIT
#pragma once

#include <cfenv>
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace sluice::test {

/// A caller's hostile arithmetic for a test's length: rounding up, and flush-to-zero of operands
/// and results where the processor has it.
class HostileMode {
 public:
  HostileMode() {
#if defined(__x86_64__)
    saved_ = _mm_getcsr();
    _mm_setcsr((saved_ & ~kRounding) | kRoundUp | kFlushToZero | kDenormalsAreZero);
#elif defined(__aarch64__)
    saved_ = read();
    write((saved_ & ~(3ULL << 22)) | (1ULL << 22) | (1ULL << 24));
#else
    saved_ = static_cast<std::uint64_t>(std::fegetround());
    std::fesetround(FE_UPWARD);
#endif
  }
  ~HostileMode() {
#if defined(__x86_64__)
    _mm_setcsr(static_cast<unsigned>(saved_));
#elif defined(__aarch64__)
    write(saved_);
#else
    std::fesetround(static_cast<int>(saved_));
#endif
  }
  HostileMode(const HostileMode&) = delete;
  HostileMode& operator=(const HostileMode&) = delete;

  /// The mode bits of this thread now, without exception flags.
  static std::uint64_t mode() {
#if defined(__x86_64__)
    return _mm_getcsr() & ~0x3FU;
#elif defined(__aarch64__)
    return read();
#else
    return static_cast<std::uint64_t>(std::fegetround());
#endif
  }

 private:
#if defined(__x86_64__)
  static constexpr unsigned kRounding = 0x6000;
  static constexpr unsigned kRoundUp = 0x4000;
  static constexpr unsigned kFlushToZero = 0x8000;
  static constexpr unsigned kDenormalsAreZero = 0x0040;
#elif defined(__aarch64__)
  static std::uint64_t read() {
    std::uint64_t value = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void write(std::uint64_t value) {
    __asm__ volatile("msr fpcr, %0" : : "r"(value));
  }
#endif
  std::uint64_t saved_ = 0;
};

}  // namespace sluice::test
