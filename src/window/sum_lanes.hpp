// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>

#include "routing/node_map.hpp"
#include "window/packet_layout.hpp"

namespace sluice::window {

/// What `reduce = node` needs of a CUDA engine's window, behind PacketLayout's:
///
///   sums := partial[served][neighbours] sum[nodes]
///
/// partial: what a rank of this node answers a home of another node, for the rank that serves that home: its owner. sum: what
/// another node answers the owner. Both are like a lane of which there is only what belongs to combine, and their rows are not poisoned:
/// they are there when it is known by other means.
class SumLanes {
 public:
  /// Whether it makes a difference: the sum of a single rank is what that rank answers.
  static bool needed(const routing::NodeMap& nodes) {
    for (int node = 0; node < nodes.nodes(); ++node) {
      if (nodes.ranks_of(node).size() > 1) return true;
    }
    return false;
  }

  SumLanes(const PacketLayout& layout, const routing::NodeMap& nodes)
      : bytes_(layout.answers_bytes()), begin_(layout.bytes()), before_(layout.head_bytes()) {
    if (!nodes.several() || !needed(nodes)) return;
    for (int rank = 0; rank < nodes.ranks(); ++rank) {
      served_ = std::max(served_, nodes.served_by(rank).size());
      neighbours_ = std::max(neighbours_, nodes.ranks_of(nodes.node_of(rank)).size());
    }
    nodes_ = static_cast<std::size_t>(nodes.nodes());
  }

  /// Of the whole window. Equal on all ranks.
  std::size_t window_bytes() const noexcept {
    return round_up(begin_ + (served_ * neighbours_ + nodes_) * bytes_, kPageBytes);
  }
  // Offsets from the window's base of where such a lane would begin if it had all of a lane: those of PacketLayout, from a
  // lane's base, hold.
  std::size_t partial(int home_place, int neighbour_place) const noexcept {
    return begin_ - before_ +
           (static_cast<std::size_t>(home_place) * neighbours_ +
            static_cast<std::size_t>(neighbour_place)) *
               bytes_;
  }
  /// From one neighbour's to the next one's.
  std::size_t partial_stride() const noexcept { return bytes_; }
  std::size_t sum(int node) const noexcept {
    return begin_ - before_ + (served_ * neighbours_ + static_cast<std::size_t>(node)) * bytes_;
  }

 private:
  std::size_t bytes_;
  std::size_t begin_;
  std::size_t before_;
  std::size_t served_ = 0;
  std::size_t neighbours_ = 0;
  std::size_t nodes_ = 0;
};

}  // namespace sluice::window
