// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/near_wrap.hpp"

namespace sluice::transport {

/// What an immediate says:
///   immediate := [use of the slot mod 16 : 4] [chunks - 1 : 8] [slot : 20]
/// A message is the chunks of one use of one slot, and is counted by itself: a count that runs on
/// from message to message would take early chunks of the next one for late ones of this
/// (docs/transport.md).
struct Signal {
  static constexpr int kSlotBits = 20;
  static constexpr int kChunksBits = 8;
  static constexpr int kSlotsMax = 1 << kSlotBits;
  static constexpr int kChunksMax = 1 << kChunksBits;
  static constexpr std::uint32_t kUses = 16;
  static constexpr std::uint32_t kNumbers = kUses * kChunksMax;
  /// From here on slots are the transport's own (bundling.hpp): so many for each of so many sources at most.
  static constexpr int kSourcesMax = 1024;
  static constexpr int kOwnSlotsOfSource = 16;
  static constexpr int kOwnSlots = kSlotsMax - kSourcesMax * kOwnSlotsOfSource;

  int slot = 0;
  int chunks = 1;         ///< Of the whole message.
  std::uint32_t use = 0;  ///< mod kUses

  constexpr std::uint32_t encode() const noexcept {
    return use % kUses << (kSlotBits + kChunksBits) |
           static_cast<std::uint32_t>(chunks - 1) << kSlotBits | static_cast<std::uint32_t>(slot);
  }
  static constexpr Signal decode(std::uint32_t immediate) noexcept {
    return {static_cast<int>(immediate % kSlotsMax),
            static_cast<int>(immediate >> kSlotBits) % kChunksMax + 1,
            immediate >> (kSlotBits + kChunksBits)};
  }

  /// Of a chunk that is a message by itself, whatever its slot's last one was: it may carry a number instead, mod kNumbers.
  static constexpr Signal numbered(int slot, std::uint32_t number) noexcept {
    return {slot, static_cast<int>(number % kChunksMax) + 1, number / kChunksMax};
  }
  constexpr std::uint32_t number() const noexcept {
    return use * kChunksMax + static_cast<std::uint32_t>(chunks - 1);
  }
};

/// Which messages have come, by slot. A slot is used again only when its message was taken and the
/// sender knows that, so at most one use of it is on its way: a chunk of another use is one of a
/// sender that was given up in the meantime, and is dropped.
class Arrivals {
 public:
  explicit Arrivals(int slots) : slots_(static_cast<std::size_t>(slots)) {}

  /// Notes a chunk. The slot, if its message is complete now.
  std::optional<int> note(std::uint32_t immediate) noexcept;
  /// The message of a slot was read: the next use may come.
  void take(int slot) noexcept;
  /// Drops what has come of the slot's present use, and awaits `use`: its sender is another one now.
  void restart(int slot, std::uint32_t use) noexcept;

 private:
  struct Slot {
    std::uint32_t use =
        base::kNearWrap;     // awaited; its lower bits travel, and those are 0 at first
    std::uint32_t seen = 0;  // chunks of it
  };
  Slot& at(int slot) noexcept { return slots_[static_cast<std::size_t>(slot)]; }

  std::vector<Slot> slots_;
};

}  // namespace sluice::transport
