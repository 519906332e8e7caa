// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.hpp"
#include "base/descriptor.hpp"
#include "bootstrap/peers.hpp"
#include "memory/shared_region.hpp"
#include "sluice/status.hpp"

namespace sluice::transport {
class Network;
}

namespace sluice::bootstrap {

/// The control plane of a world: what engines need of their peers besides windows. Ranks of other
/// nodes are reached by collective calls only: their memory is not mapped, and of their life there is
/// a hint at most.
///
/// Three implementations: threads of one process, processes of one host joined by a mesh of sockets, and those of several nodes,
/// which have a store. All collective calls come in the same order on every rank; every one of them ends by its deadline,
/// and a peer's death ends it early with `unavailable` and a message that names the peer.
class Group : public Peers, public std::enable_shared_from_this<Group> {
 public:
  /// The peers without the calls, of a group that is held by shared_ptr; they may outlive it. What the group
  /// holds beside them, a caller's store above all, ends with the group.
  virtual std::shared_ptr<Peers> peers() { return shared_from_this(); }

  /// By which ranks of several nodes reach each other; null on one node.
  virtual std::shared_ptr<transport::Network> network() const noexcept = 0;

  /// Collective. One blob of every rank, in rank order. Blobs may differ in length and be empty.
  virtual Result<std::vector<std::string>> all_gather(std::string_view blob,
                                                      base::Deadline deadline) = 0;

  /// Collective. Every rank brings a Status; all get the same one (agreed_status).
  Status agree(const Status& mine, base::Deadline deadline);
  /// Collective. A random number, the same on all ranks: names what belongs together.
  Result<std::uint64_t> number(base::Deadline deadline);

  /// Collective. Every rank contributes `bytes` zeroed bytes (its own number, 0 allowed) of
  /// anonymous shared memory and maps those of its node (the others' base is null). `committed`: the
  /// memory is taken now, so that no later store can fail for want of it; otherwise when touched. If
  /// any rank fails, all ranks get the same Status, which names the rank, the bytes asked for and the
  /// reason.
  virtual Result<memory::SharedRegion> share(std::size_t bytes, bool committed,
                                             base::Deadline deadline) = 0;

  /// Collective. Every rank gives one open file, or none (a closed descriptor), and gets everybody's
  /// in rank order; its own is a duplicate. Files reach ranks of other nodes, or these get closed descriptors. If any rank brings a Status instead, or cannot take what
  /// came, all ranks get the same Status, which names the rank, and the world works on.
  virtual Result<std::vector<base::Descriptor>> exchange_files(const Result<base::Descriptor>& mine,
                                                               base::Deadline deadline) = 0;

  /// Collective. Ranks of one color form a group ordered by (key, rank).
  virtual Result<std::unique_ptr<Group>> split(int color, int key, base::Deadline deadline) = 0;

  /// This rank was cut short in a collective call, as by want of memory, and others may be in the midst of it: it makes none any
  /// more, its own give `why` from now on, and those of others end. Its communicators live.
  virtual void give_up(const Status& why) noexcept = 0;

  /// Marks this rank as left on its control page, rings every peer, and waits until every living
  /// peer has been told (see World::leave).
  virtual Status leave(base::Deadline deadline) = 0;
};

}  // namespace sluice::bootstrap
