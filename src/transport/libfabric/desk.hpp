// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::transport {

/// Words that ranks write at each other. The desk of a rank holds those that peers write there, one
/// writer each, and behind them what this rank writes at peers, until it is there:
///   desk := half half               half := taken[ranks] unread signals[rails][ranks][window]
/// taken[p]: how many chunks of the reader rank p has taken, monotone. unread: where a chunk without bytes goes, by whomever it
/// is sent, as not all providers bring an immediate with no bytes at all. signals[r][p]: a ring of what
/// rank p signals over rail r, where immediates do not travel with writes (otherwise there are no
/// rings). A signal is
///   [its number, from 1, mod 2^32 : 32] [immediate : 32]
/// with the number above: TCP may show the first bytes of a word before its last ones, and then the
/// number is not the awaited one yet. (A count of which so much is seen is not above the new one.)
/// The ring is never overrun: a peer signals at most `window` chunks that were not taken; for the same
/// reason a word may be overwritten in the second half when its place is used again.
class Desk {
 public:
  /// window: 0 where there are no rings.
  Desk(int rails, int ranks, int window)
      : ranks_(static_cast<std::size_t>(ranks)),
        window_(static_cast<std::size_t>(window)),
        half_(ranks_ + 1 + static_cast<std::size_t>(rails) * ranks_ * window_),
        words_(2 * half_) {}

  static constexpr std::uint64_t word(std::uint64_t number, std::uint32_t immediate) noexcept {
    return number << 32 | immediate;
  }
  static constexpr bool is_number(std::uint64_t word, std::uint64_t number) noexcept {
    return word >> 32 == (number & 0xffffffffU);
  }

  std::byte* base() noexcept { return reinterpret_cast<std::byte*>(words_.data()); }
  std::size_t bytes() const noexcept { return words_.size() * sizeof(std::uint64_t); }

  // Places in a half, equal on all ranks.
  std::size_t taken(int writer) const noexcept { return static_cast<std::size_t>(writer); }
  std::size_t unread() const noexcept { return ranks_; }
  std::size_t signal(int rail, int writer, std::uint64_t number) const noexcept {
    return ranks_ + 1 +
           (static_cast<std::size_t>(rail) * ranks_ + static_cast<std::size_t>(writer)) * window_ +
           number % window_;
  }

  static std::uint64_t offset(std::size_t place) noexcept { return place * sizeof(std::uint64_t); }
  std::uint64_t load(std::size_t place) noexcept {
    // Pairs with the provider's write of the word: by this thread, in a poll (tcp), or by a NIC.
    return std::atomic_ref<std::uint64_t>(words_[place]).load(std::memory_order_acquire);
  }
  /// Keeps a word that is to be written at a peer, in the second half: where it lies.
  const std::byte* keep(std::size_t place, std::uint64_t word) noexcept {
    words_[half_ + place] = word;
    return reinterpret_cast<const std::byte*>(&words_[half_ + place]);
  }

 private:
  std::size_t ranks_;
  std::size_t window_;
  std::size_t half_;
  std::vector<std::uint64_t> words_;
};

}  // namespace sluice::transport
