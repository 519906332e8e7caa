// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <vector>

namespace sluice::routing {

/// Which ranks share a node's memory. Nodes are numbered by their lowest rank, so that two maps of
/// the same ranks are equal.
class NodeMap {
 public:
  /// `rank_to_node`: any numbers; ranks with the same one are a node.
  explicit NodeMap(std::span<const int> rank_to_node);
  static NodeMap one_node(int ranks) {
    return NodeMap(std::vector<int>(static_cast<std::size_t>(ranks)));
  }
  /// The first sizes[0] ranks are a node, the next sizes[1] are another, ...
  static NodeMap of_sizes(std::span<const int> sizes);
  /// Of a world made of `ranks`, numbered anew in this order.
  NodeMap among(std::span<const int> ranks) const;

  int ranks() const noexcept { return static_cast<int>(node_of_.size()); }
  int nodes() const noexcept { return static_cast<int>(members_.size()); }
  bool several() const noexcept { return members_.size() > 1; }
  int node_of(int rank) const noexcept { return node_of_[static_cast<std::size_t>(rank)]; }
  bool together(int a, int b) const noexcept { return node_of(a) == node_of(b); }
  /// Ascending.
  std::span<const int> ranks_of(int node) const noexcept {
    return members_[static_cast<std::size_t>(node)];
  }
  /// The place of a rank among those of its node.
  int place_of(int rank) const noexcept { return place_[static_cast<std::size_t>(rank)]; }
  /// On that node, the rank that takes what `rank` sends there, and answers for its node.
  int rail_peer(int rank, int node) const noexcept {
    const std::span<const int> there = ranks_of(node);
    return there[static_cast<std::size_t>(place_of(rank)) % there.size()];
  }
  /// Ranks of other nodes whose rail peer is `rank`, ascending.
  std::vector<int> served_by(int rank) const;
  std::span<const int> rank_to_node() const noexcept { return node_of_; }

 private:
  std::vector<int> node_of_;
  std::vector<int> place_;
  std::vector<std::vector<int>> members_;
};

}  // namespace sluice::routing
