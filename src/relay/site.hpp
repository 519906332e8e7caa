// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bootstrap/peers.hpp"
#include "memory/control_page.hpp"
#include "memory/shared_region.hpp"
#include "protocol/cell.hpp"
#include "protocol/epochs.hpp"
#include "protocol/host_access.hpp"
#include "routing/expert_map.hpp"
#include "routing/node_map.hpp"
#include "window/relay_layout.hpp"
#include "window/window_layout.hpp"

namespace sluice::relay {

/// A communicator's memory. The relay may need it for a little longer than its engine.
struct Memory {
  memory::SharedRegion windows;
  memory::SharedRegion heaps;  // Registered memory.
};
/// What RelayLayout::closed says of a rank's relay, a bit each.
inline constexpr std::uint64_t kRelayClosed = 1;  // Its communicator is closed; it still works.
inline constexpr std::uint64_t kRelayEnded = 2;   // Or has failed.
/// What WindowLayout::gone says of a rank.
inline constexpr std::uint64_t kGivenUp = 1;  // Nothing more of it counts, and nothing goes to it.
inline constexpr std::uint64_t kSettled = 2;  // What may still be on its way to it is lost.
/// The regions of every endpoint, in this order.
inline constexpr int kWindowRegion = 0;
inline constexpr int kHeapRegion = 1;
/// The CUDA engine's: rows to and from other nodes.
inline constexpr int kRowsRegion = 2;

/// Where a relay works: what its parts share.
struct Site {
  int rank = 0;
  int top_k = 0;
  int hidden = 0;
  routing::NodeMap nodes = routing::NodeMap::one_node(0);
  routing::ExpertMap map;
  window::WindowLayout window;
  std::vector<window::RelayLayout> layouts;  // [R]
  std::uint64_t chunk_bytes = 0;             // Of what lies together, put at once at most.
  std::shared_ptr<Memory> memory;
  std::shared_ptr<bootstrap::Peers> peers;

  int own_node() const noexcept { return nodes.node_of(rank); }
  /// The ranks of this node, this one among them.
  std::span<const int> neighbours() const noexcept { return nodes.ranks_of(own_node()); }
  /// Of this rank, on another node.
  int rail_peer(int node) const noexcept { return nodes.rail_peer(rank, node); }
  /// Whether neither of two ranks of different nodes serves the other: then answers, and weights that were given, may go from
  /// one to the other, but no signs.
  bool apart(int one, int other) const noexcept {
    return nodes.rail_peer(one, nodes.node_of(other)) != other &&
           nodes.rail_peer(other, nodes.node_of(one)) != one;
  }
  const window::RelayLayout& layout(int of_rank) const noexcept {
    return layouts[static_cast<std::size_t>(of_rank)];
  }
  const window::RelayLayout& own() const noexcept { return layout(rank); }
  int bank(std::uint64_t epoch) const noexcept {
    return protocol::bank_of(epoch, window.shape().banks);
  }

  /// In the window of a rank of this node.
  template <typename T>
  T* at(int of_rank, std::size_t offset) const noexcept {
    return reinterpret_cast<T*>(memory->windows.base(of_rank) + offset);
  }
  /// Where the progress thread of a rank of this node sleeps.
  memory::Doorbell& doorbell(int neighbour) const noexcept {
    static_assert(sizeof(memory::Doorbell) == window::kLineBytes);
    return *at<memory::Doorbell>(neighbour, layout(neighbour).doorbell());
  }
  void ring(int neighbour) const noexcept { peers->control(neighbour).doorbell.ring(); }
  void ring_all() const noexcept {
    for (const int neighbour : neighbours()) ring(neighbour);
  }
  /// In the eyes of a rank of this node: kGivenUp, kSettled.
  void give_up(int peer, int reader, std::uint64_t how) const noexcept {
    // Pairs with the loads in Waiter::cut_off, ended() and Presence::watch_peers.
    protocol::HostAccess::add_bits(*at<std::uint64_t>(reader, window.gone(peer)), how);
    ring(reader);
  }
  /// Of a rank of this node: kRelayClosed, kRelayEnded.
  std::uint64_t relay_state(int neighbour) const noexcept {
    // Pairs with ~Relay and Relay::Thread::end.
    return protocol::HostAccess::load_acquire(
        *at<std::uint64_t>(neighbour, layout(neighbour).closed()));
  }
  /// Whether the relay of a rank of this node passes nothing on any more.
  bool relay_ended(int neighbour) const noexcept {
    return (relay_state(neighbour) & kRelayEnded) != 0;
  }
  /// Nor is anything asked of it: its communicator is closed, too.
  bool relay_done(int neighbour) const noexcept {
    return relay_state(neighbour) == (kRelayClosed | kRelayEnded);
  }
  /// Whether nothing more comes of a rank of this node.
  bool ended(int neighbour) const noexcept {
    // Pairs with the release store in Group::leave.
    return peers->is_dead(neighbour) ||
           peers->control(neighbour).state.load(std::memory_order_acquire) ==
               static_cast<std::uint32_t>(memory::RankState::left) ||
           // Pairs with Site::give_up.
           protocol::HostAccess::load_acquire(*at<std::uint64_t>(rank, window.gone(neighbour))) !=
               0;
  }
};

}  // namespace sluice::relay
