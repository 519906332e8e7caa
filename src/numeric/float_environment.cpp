// SPDX-License-Identifier: MIT
#include "numeric/float_environment.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

// Constructor and destructor stay out of line on purpose: a compiler may move arithmetic across an
// inlined write of the control register, but not across a call it cannot see into.
namespace sluice::numeric {

#if defined(__x86_64__) || defined(__aarch64__)
namespace {

#if defined(__x86_64__)
constexpr std::uint64_t kExceptionFlags = 0x003F;
// All exceptions masked, nearest even, no flush-to-zero, no denormals-are-zero.
constexpr std::uint64_t kWanted = 0x1F80;

std::uint64_t read_control() noexcept {
  return _mm_getcsr();
}
void write_control(std::uint64_t value) noexcept {
  _mm_setcsr(static_cast<unsigned>(value));
}
bool right(std::uint64_t control) noexcept {
  return (control & ~kExceptionFlags & 0xFFFFU) == kWanted;
}
#else
// All zero: nearest even, no flushing, no default NaN, no traps. The flags live elsewhere (FPSR).
constexpr std::uint64_t kWanted = 0;

std::uint64_t read_control() noexcept {
  std::uint64_t value = 0;
  __asm__ volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
void write_control(std::uint64_t value) noexcept {
  __asm__ volatile("msr fpcr, %0" : : "r"(value) : "memory");
}
bool right(std::uint64_t control) noexcept {
  return control == kWanted;
}
#endif

}  // namespace

FloatEnvironment::FloatEnvironment() noexcept : caller_control_(read_control()) {
  if (!right(caller_control_)) {
    write_control(kWanted);
    changed_ = true;
  }
}

FloatEnvironment::~FloatEnvironment() {
  if (changed_) {
    write_control(caller_control_);
  }
}

bool FloatEnvironment::active() noexcept {
  return right(read_control());
}

#else

FloatEnvironment::FloatEnvironment() noexcept {
  changed_ = std::fegetenv(&caller_environment_) == 0 && std::fesetenv(FE_DFL_ENV) == 0;
}

FloatEnvironment::~FloatEnvironment() {
  if (changed_) {
    static_cast<void>(std::fesetenv(&caller_environment_));
  }
}

bool FloatEnvironment::active() noexcept {
  return std::fegetround() == FE_TONEAREST;
}

#endif

}  // namespace sluice::numeric
