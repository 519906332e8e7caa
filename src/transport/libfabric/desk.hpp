// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::transport {

/// Words of this rank that peers write, each of which has one writer:
///   desk := taken[ranks] signals[rails][ranks][window]
/// taken[p]: how many of this rank's chunks rank p has taken, monotone. signals[r][p]: a ring of what
/// rank p signals over rail r where immediates do not travel with writes; a word is
///   [number of the signal, from 1, mod 2^32 : 32] [immediate : 32]
/// The ring is never overrun: a peer signals at most `window` chunks that were not taken.
class Desk {
 public:
  Desk(int rails, int ranks, int window)
      : ranks_(static_cast<std::size_t>(ranks)),
        window_(static_cast<std::size_t>(window)),
        words_(ranks_ + static_cast<std::size_t>(rails) * ranks_ * window_) {}

  static constexpr std::uint64_t signal(std::uint64_t number, std::uint32_t immediate) noexcept {
    return number << 32 | immediate;
  }
  static constexpr bool is_number(std::uint64_t word, std::uint64_t number) noexcept {
    return word >> 32 == (number & 0xffffffffU);
  }

  std::byte* base() noexcept { return reinterpret_cast<std::byte*>(words_.data()); }
  std::size_t bytes() const noexcept { return words_.size() * sizeof(std::uint64_t); }

  // Offsets in bytes, equal on all ranks.
  std::uint64_t taken_offset(int writer) const noexcept {
    return sizeof(std::uint64_t) * static_cast<std::uint64_t>(writer);
  }
  std::uint64_t signal_offset(int rail, int writer, std::uint64_t number) const noexcept {
    return sizeof(std::uint64_t) *
           (ranks_ +
            (static_cast<std::size_t>(rail) * ranks_ + static_cast<std::size_t>(writer)) * window_ +
            number % window_);
  }

  std::uint64_t load(std::uint64_t offset) noexcept {
    // Pairs with the provider's write of the word: by this thread, in a poll (tcp), or by a NIC,
    // which writes eight aligned bytes at once.
    return std::atomic_ref<std::uint64_t>(words_[offset / sizeof(std::uint64_t)])
        .load(std::memory_order_acquire);
  }

 private:
  std::size_t ranks_;
  std::size_t window_;
  std::vector<std::uint64_t> words_;
};

}  // namespace sluice::transport
