// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "base/mutants.hpp"
#include "protocol/cell.hpp"

/// The words that ranks write into each other's lanes. `Access` supplies the loads and stores of a
/// machine (host: protocol/host_access.hpp), so that the protocol is written once.
namespace sluice::protocol {

/// Sender, after the payload of `epoch` is written. The release store pairs with the acquire load
/// in arrived(): who sees the epoch sees the content and the payload.
template <typename Access>
void publish(Cell& cell, const CellContent& content, std::uint64_t epoch) noexcept {
  cell.content = content;
  if (base::mutant(base::Mutant::publish_relaxed)) {
    Access::store_relaxed(cell.epoch, epoch);
  } else {
    Access::store_release(cell.epoch, epoch);
  }
}

/// Receiver: whether the cell is that of `epoch`. Equality, not order: an older epoch is a bank not
/// yet written, and a newer one cannot be there before this one is read (the guard).
template <typename Access>
bool arrived(const Cell& cell, std::uint64_t epoch) noexcept {
  const std::uint64_t seen = Access::load_acquire(cell.epoch);
  if (base::mutant(base::Mutant::epoch_not_compared)) return seen != 0;
  return seen == epoch;
}

/// Receiver to sender: everything up to `last_read` of this kind has been read. Monotone, not
/// banked. The release store pairs with the acquire load in told(): the reads come before what the
/// sender writes after its guard.
template <typename Access>
void tell(std::uint64_t& word, std::uint64_t last_read) noexcept {
  if (base::mutant(base::Mutant::tell_relaxed)) return Access::store_relaxed(word, last_read);
  Access::store_release(word, last_read);
}

/// Sender: what the receiver has told. Pairs with tell().
template <typename Access>
std::uint64_t told(const std::uint64_t& word) noexcept {
  return Access::load_acquire(word);
}

/// Source to reader: you have been given up. Before the source reuses anything that the reader may
/// still be pulling: the exchange is an acquire, so what the source writes later stays behind it.
template <typename Access>
void accuse(std::uint64_t& word) noexcept {
  Access::exchange(word, 1);
}

/// Reader, after it has pulled rows of a source: whether the source had given it up, so that the
/// rows may have been overwritten meanwhile. Pairs with accuse(): if the look comes first, its
/// release orders the pulled loads before whatever the source writes after its exchange.
template <typename Access>
bool accused(std::uint64_t& word) noexcept {
  if (base::mutant(base::Mutant::look_back_skipped)) return false;
  return Access::look_back(word) != 0;
}

}  // namespace sluice::protocol
