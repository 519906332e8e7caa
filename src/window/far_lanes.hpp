// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include "routing/node_map.hpp"
#include "window/packet_layout.hpp"

namespace sluice::window {

/// The lanes of a CUDA engine that reach over the network: bytes as a GPU's lanes have them (PacketLayout), on their way to
/// such lanes. A rank's progress thread reads what says what they are; so that lies in host memory. Rows it does not look
/// at: they have a memory of their own, of the host or, where the network reaches it, of the GPU.
///
///   heads := out[R'] in[R'] through[served][neighbours] targets[Bs] landed[served][Bs]
///   rows  := stage[Bs] out_rows[R'] in_rows[R'] landing[served][Bs]
///
/// out: what this rank's kernels have written for a rank of another node. in: what has come from it.
/// through: what has come from it for another rank of this node, up to PacketLayout::head_bytes(). R': ranks of
/// other nodes. A lane has rows of dispatch only where these go to, or come from, a rail peer: one for
/// each (token, node). In throughput mode they have none: rows that go to other nodes lie in `stage`, and in `targets`
/// there is a word for each, with the ranks that it goes to; both arrive where a source that is served has its landing.
class FarLanes {
 public:
  FarLanes() = default;
  /// Of `rank`. Heads from byte `begin` of its host memory on.
  FarLanes(const PacketLayout& lanes, const routing::NodeMap& nodes, int rank, std::size_t begin)
      : out_(static_cast<std::size_t>(nodes.ranks())),
        in_(out_.size()),
        through_(out_.size()),
        landed_(out_.size()),
        out_rows_(out_.size()),
        in_rows_(out_.size()),
        landings_(out_.size()),
        tokens_(static_cast<std::size_t>(lanes.shape().tokens)),
        head_bytes_(round_up(lanes.head_bytes(), kPageBytes)),
        rows_begin_(lanes.rows_begin()),
        end_(begin) {
    const std::size_t neighbours = nodes.ranks_of(nodes.node_of(rank)).size();
    const std::size_t stages = lanes.stages_bytes();
    const std::size_t targets =
        static_cast<std::size_t>(lanes.shape().stages * lanes.shape().tokens) *
        sizeof(std::uint32_t);
    stage_ = take(rows_end_, stages);
    targets_ = take(end_, targets);
    for (int peer = 0; peer < nodes.ranks(); ++peer) {
      if (nodes.together(peer, rank)) continue;
      const auto at = static_cast<std::size_t>(peer);
      const bool rail = nodes.rail_peer(rank, nodes.node_of(peer)) == peer;
      const bool served = nodes.rail_peer(peer, nodes.node_of(rank)) == rank;
      const auto rows_bytes = [&](bool all) {
        return (all ? lanes.lane_bytes() : lanes.short_lane_bytes()) - rows_begin_;
      };
      out_[at] = take(end_, rows_begin_);
      in_[at] = take(end_, rows_begin_);
      out_rows_[at] = take(rows_end_, rows_bytes(rail));
      in_rows_[at] = take(rows_end_, rows_bytes(served));
      if (!served) continue;
      through_[at] = take(end_, neighbours * head_bytes_);
      landed_[at] = take(end_, targets);
      landings_[at] = take(rows_end_, stages);
    }
    end_ = round_up(end_, kPageBytes);
    rows_end_ = round_up(rows_end_, kPageBytes);
  }

  // Offsets from the begin of the host memory.
  std::size_t out(int peer) const noexcept { return out_[static_cast<std::size_t>(peer)]; }
  std::size_t in(int source) const noexcept { return in_[static_cast<std::size_t>(source)]; }
  /// Of a served source, for the rank at `place` of this node.
  std::size_t through(int source, int place) const noexcept {
    return through_[static_cast<std::size_t>(source)] +
           static_cast<std::size_t>(place) * head_bytes_;
  }
  /// Throughput mode. u32[S]: the ranks that a token goes to, a bit each.
  std::size_t targets(int bank) const noexcept { return targets_ + word(bank); }
  std::size_t landed_targets(int source, int bank) const noexcept {
    return landed_[static_cast<std::size_t>(source)] + word(bank);
  }
  std::size_t end() const noexcept { return end_; }

  // Offsets from the begin of the memory of rows. Of a row that is at `offset` of a lane:
  std::size_t out_row(int peer, std::size_t offset) const noexcept {
    return out_rows_[static_cast<std::size_t>(peer)] + (offset - rows_begin_);
  }
  std::size_t in_row(int source, std::size_t offset) const noexcept {
    return in_rows_[static_cast<std::size_t>(source)] + (offset - rows_begin_);
  }
  // Throughput mode: from here on as PacketLayout::staged_offset() says.
  std::size_t stage() const noexcept { return stage_; }
  std::size_t landing(int source) const noexcept {
    return landings_[static_cast<std::size_t>(source)];
  }
  std::size_t rows_end() const noexcept { return rows_end_; }

 private:
  static std::size_t take(std::size_t& end, std::size_t bytes) noexcept {
    const std::size_t at = round_up(end, kPageBytes);
    end = at + bytes;
    return at;
  }
  std::size_t word(int bank) const noexcept {
    return static_cast<std::size_t>(bank) * tokens_ * sizeof(std::uint32_t);
  }

  std::vector<std::size_t> out_;       // [R]
  std::vector<std::size_t> in_;        // [R]
  std::vector<std::size_t> through_;   // [R]
  std::vector<std::size_t> landed_;    // [R]
  std::vector<std::size_t> out_rows_;  // [R]
  std::vector<std::size_t> in_rows_;   // [R]
  std::vector<std::size_t> landings_;  // [R]
  std::size_t tokens_ = 0;
  std::size_t head_bytes_ = 0;
  std::size_t rows_begin_ = 0;
  std::size_t stage_ = 0;
  std::size_t targets_ = 0;
  std::size_t end_ = 0;
  std::size_t rows_end_ = 0;
};

}  // namespace sluice::window
