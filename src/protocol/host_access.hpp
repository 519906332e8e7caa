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
  static void exchange(std::uint64_t& word, std::uint64_t value) noexcept {
    std::atomic_ref<std::uint64_t>(word).exchange(value, std::memory_order_acq_rel);
  }
  /// Sets bits of a word that several threads set.
  static void add_bits(std::uint64_t& word, std::uint64_t bits) noexcept {
    std::atomic_ref<std::uint64_t>(word).fetch_or(bits, std::memory_order_release);
  }
  /// A load that earlier loads of this thread cannot pass: an increment by nothing.
  static std::uint64_t look_back(std::uint64_t& word) noexcept {
    return std::atomic_ref<std::uint64_t>(word).fetch_add(0, std::memory_order_acq_rel);
  }
};

static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free);

}  // namespace sluice::protocol
