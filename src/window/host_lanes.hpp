// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include "routing/node_map.hpp"
#include "window/packet_layout.hpp"

namespace sluice::window {

/// The lanes of a CUDA engine that reach over the network, in a rank's host memory: bytes as a GPU's
/// lanes have them (PacketLayout), on their way to such lanes.
///
///   host lanes := out[R'] in[R'] heads[served][neighbours] stage[Bs] targets[Bs] landing[served][Bs] landed[served][Bs]
///
/// out: what this rank's kernels have written for a rank of another node. in: what has come from it.
/// heads: what has come from it for another rank of this node, up to PacketLayout::head_bytes(). R': ranks of
/// other nodes. A lane has rows of dispatch only where these go to, or come from, a rail peer: one for
/// each (token, node). In throughput mode they have none: rows that go to other nodes lie in `stage`, and behind it there is
/// a word for each, with the ranks that it goes to; both arrive where a source that is served has its landing.
class HostLanes {
 public:
  HostLanes() = default;
  /// Of `rank`, from byte `begin` of its host memory on.
  HostLanes(const PacketLayout& lanes, const routing::NodeMap& nodes, int rank, std::size_t begin)
      : out_(static_cast<std::size_t>(nodes.ranks())),
        in_(out_.size()),
        heads_(out_.size()),
        landings_(out_.size()),
        landed_(out_.size()),
        tokens_(static_cast<std::size_t>(lanes.shape().tokens)),
        head_bytes_(round_up(lanes.head_bytes(), kPageBytes)) {
    std::size_t end = begin;
    const auto take = [&end](std::size_t bytes) {
      const std::size_t at = round_up(end, kPageBytes);
      end = at + bytes;
      return at;
    };
    const std::size_t neighbours = nodes.ranks_of(nodes.node_of(rank)).size();
    const std::size_t stages = lanes.stages_bytes();
    const std::size_t targets =
        static_cast<std::size_t>(lanes.shape().stages * lanes.shape().tokens) *
        sizeof(std::uint32_t);
    stage_ = take(stages);
    targets_ = take(targets);
    for (int peer = 0; peer < nodes.ranks(); ++peer) {
      if (nodes.together(peer, rank)) continue;
      const auto at = static_cast<std::size_t>(peer);
      const bool rail = nodes.rail_peer(rank, nodes.node_of(peer)) == peer;
      const bool served = nodes.rail_peer(peer, nodes.node_of(rank)) == rank;
      out_[at] = take(rail ? lanes.lane_bytes() : lanes.short_lane_bytes());
      in_[at] = take(served ? lanes.lane_bytes() : lanes.short_lane_bytes());
      if (!served) continue;
      heads_[at] = take(neighbours * head_bytes_);
      landings_[at] = take(stages);
      landed_[at] = take(targets);
    }
    end_ = round_up(end, kPageBytes);
  }

  // Offsets from the begin of the host memory.
  std::size_t out(int peer) const noexcept { return out_[static_cast<std::size_t>(peer)]; }
  std::size_t in(int source) const noexcept { return in_[static_cast<std::size_t>(source)]; }
  /// Of a served source, for the rank at `place` of this node.
  std::size_t heads(int source, int place) const noexcept {
    return heads_[static_cast<std::size_t>(source)] + static_cast<std::size_t>(place) * head_bytes_;
  }
  // Throughput mode. Rows: from here on as PacketLayout::staged_offset() says.
  std::size_t stage() const noexcept { return stage_; }
  std::size_t landing(int source) const noexcept {
    return landings_[static_cast<std::size_t>(source)];
  }
  /// u32[S]: the ranks that a token goes to, a bit each.
  std::size_t targets(int bank) const noexcept { return targets_ + word(bank); }
  std::size_t landed_targets(int source, int bank) const noexcept {
    return landed_[static_cast<std::size_t>(source)] + word(bank);
  }
  std::size_t end() const noexcept { return end_; }

 private:
  std::size_t word(int bank) const noexcept {
    return static_cast<std::size_t>(bank) * tokens_ * sizeof(std::uint32_t);
  }

  std::vector<std::size_t> out_;       // [R]
  std::vector<std::size_t> in_;        // [R]
  std::vector<std::size_t> heads_;     // [R]
  std::vector<std::size_t> landings_;  // [R]
  std::vector<std::size_t> landed_;    // [R]
  std::size_t tokens_ = 0;
  std::size_t stage_ = 0;
  std::size_t targets_ = 0;
  std::size_t head_bytes_ = 0;
  std::size_t end_ = 0;
};

}  // namespace sluice::window
