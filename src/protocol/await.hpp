// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "base/mutants.hpp"
#include "sluice/report.hpp"

namespace sluice::protocol {

/// Peers that this rank has given up, for good: it never waits for them, writes to them or reads
/// their lanes again, whatever they do later.
class Suspects {
 public:
  void suspect(int rank) noexcept { set_.insert(rank); }
  bool contains(int rank) const noexcept { return set_.contains(rank); }
  const RankSet& set() const noexcept { return set_; }
  /// Called when an operation ends.
  void operation_ended() noexcept {
    if (base::mutant(base::Mutant::suspect_forgiven)) set_ = {};
  }

 private:
  RankSet set_;
};

/// Waits until `ready(peer)` for every peer of `awaited`. Those that are gone (dead, left), or
/// overdue and not ready, become suspects and are returned.
///
/// A peer that is gone is asked once more: it may have signalled just before its end.
///
/// Waiter supplies the machine: gone(peer), overdue(peer), prepare() and pause(); and is told of
/// the end: arrived(peer) or gave_up(peer). prepare() comes before the conditions are looked at, so
/// that pause() may sleep without missing a signal.
template <typename Waiter, typename Ready>
RankSet await(Waiter& waiter, Suspects& suspects, const RankSet& awaited, int ranks,
              Ready&& ready) {
  RankSet pending;
  RankSet missing;
  int left = 0;
  for (int peer = 0; peer < ranks; ++peer) {
    if (!awaited.contains(peer)) continue;
    if (suspects.contains(peer)) {
      missing.insert(peer);
    } else if (!ready(peer)) {
      pending.insert(peer);
      ++left;
    }
  }
  while (left > 0) {
    waiter.prepare();
    for (int peer = 0; peer < ranks; ++peer) {
      if (!pending.contains(peer)) continue;
      // Looked at before the last ready().
      const bool given_up = waiter.gone(peer) || waiter.overdue(peer);
      if (ready(peer)) {
        pending.erase(peer);
        --left;
        waiter.arrived(peer);
      } else if (given_up) {
        pending.erase(peer);
        --left;
        suspects.suspect(peer);
        missing.insert(peer);
        waiter.gave_up(peer);
      }
    }
    if (left > 0) waiter.pause();
  }
  return missing;
}

}  // namespace sluice::protocol
