// SPDX-License-Identifier: MIT
#pragma once

#include "memory/control_page.hpp"
#include "routing/node_map.hpp"

namespace sluice::bootstrap {

/// What a rank sees of the others when it asks them nothing: which of them are on its node, the control pages of those, and
/// who is gone. For peers it is there for as long as it holds this.
class Peers {
 public:
  virtual ~Peers() = default;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual const routing::NodeMap& nodes() const noexcept = 0;

  /// The control page of `rank`, valid as long as this. Of a rank of another node: a page that
  /// says nothing.
  virtual memory::ControlPage& control(int rank) noexcept = 0;

  /// Ranks of this node: whether the peer's process is known to have ended without leave(). Becomes true by itself (a
  /// monitor watches the peers) and rings this rank's doorbell when it does. A peer that destroyed
  /// its group without leave() counts as dead; a thread cannot die in any other way.
  virtual bool is_dead(int rank) const noexcept = 0;

  /// Ranks of this node: whether the peer's process is known to have ended, which is more: no thread of
  /// it runs any more. A peer that is_dead() may be a process that lives, and has destroyed its group.
  /// Never true of a thread, nor where the system does not tell (process descriptors).
  virtual bool has_ended(int rank) const noexcept = 0;

  /// Ranks of this node: one of the two. Who has left before its process ended was not dead; nothing more comes of it either.
  bool is_over(int rank) const noexcept { return is_dead(rank) || has_ended(rank); }

  /// Ranks of other nodes that this one serves, or is served by: whether a connection with its process has
  /// ended, and the rank had neither left nor destroyed its group. It may live all the same. Never true
  /// of threads, nor where there is no such connection.
  virtual bool hung_up(int rank) const noexcept = 0;
};

}  // namespace sluice::bootstrap
