// SPDX-License-Identifier: MIT
#include "transport/message.hpp"

namespace sluice::transport {

std::optional<int> Arrivals::note(std::uint32_t immediate) noexcept {
  const Signal signal = Signal::decode(immediate);
  if (signal.slot >= static_cast<int>(slots_.size())) return std::nullopt;
  Slot& slot = at(signal.slot);
  if (signal.use != slot.use % Signal::kUses) return std::nullopt;
  ++slot.seen;
  if (slot.seen != static_cast<std::uint32_t>(signal.chunks)) return std::nullopt;
  return signal.slot;
}

void Arrivals::take(int slot) noexcept {
  restart(slot, at(slot).use + 1);
}

void Arrivals::restart(int slot, std::uint32_t use) noexcept {
  at(slot) = {use, 0};
}

}  // namespace sluice::transport
