// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

/// Stacks that a thread of the host has besides its own: it leaves one and goes on with another.
namespace gpu_simulator {

/// Leaves this stack, which goes on from `left`, for the one that was left at `next`. Written in stacks.cpp.
extern "C" __attribute__((visibility("hidden"))) void gpu_simulator_switch(void** left, void* next);

/// From where a stack goes on that nobody has used: it calls `begin`, which never returns.
void* unused_stack(std::byte* stack, std::size_t bytes, void (*begin)());

#if defined(__SANITIZE_ADDRESS__)
inline constexpr std::size_t kStackBytes = std::size_t{256} << 10;

/// Tells the sanitizer that this thread of the host goes on with another stack, until it comes back.
class OtherStack {
 public:
  OtherStack(const void* bottom, std::size_t bytes) {
    __sanitizer_start_switch_fiber(&kept_, bottom, bytes);
  }
  ~OtherStack() { __sanitizer_finish_switch_fiber(kept_, nullptr, nullptr); }

 private:
  void* kept_ = nullptr;
};
/// Likewise, at the begin of a stack, and at its end, for good.
inline void begin_stack(const void** bottom_before, std::size_t* bytes_before) {
  __sanitizer_finish_switch_fiber(nullptr, bottom_before, bytes_before);
}
inline void end_stack(const void* bottom, std::size_t bytes) {
  __sanitizer_start_switch_fiber(nullptr, bottom, bytes);
}
#else
inline constexpr std::size_t kStackBytes = std::size_t{64} << 10;

struct OtherStack {
  OtherStack(const void* /*bottom*/, std::size_t /*bytes*/) {}
  ~OtherStack() {}  // Not trivial: its objects are there for what they do.
};
inline void begin_stack(const void** /*bottom_before*/, std::size_t* /*bytes_before*/) {}
inline void end_stack(const void* /*bottom*/, std::size_t /*bytes*/) {}
#endif

}  // namespace gpu_simulator
