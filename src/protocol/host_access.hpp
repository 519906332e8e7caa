// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>

namespace sluice::protocol {

/// Loads and stores of words that other threads and processes of this host access too.
struct HostAccess {
  static std::uint64_t load_acquire(const std::uint64_t& word) noexcept {
    return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(word))
        .load(std::memory_order_acquire);
  }
  static void store_release(std::uint64_t& word, std::uint64_t value) noexcept {
    std::atomic_ref<std::uint64_t>(word).store(value, std::memory_order_release);
  }
  static void store_relaxed(std::uint64_t& word, std::uint64_t value) noexcept {
    std::atomic_ref<std::uint64_t>(word).store(value, std::memory_order_relaxed);
  }
};

static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free);

}  // namespace sluice::protocol
