// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/shared_region.hpp"
#include "protocol/cell.hpp"
#include "relay/site.hpp"
#include "routing/node_map.hpp"
#include "window/relay_layout.hpp"
#include "window/window_layout.hpp"

namespace sluice::engine::cpu {

/// Pointers into windows. `out`: what this rank writes, its lane in the peer's window. `in`: what
/// the peer writes here, its lane in the own window. Lanes at ranks of other nodes cannot be written:
/// what is told to them stands in the own window, and the relay carries it.
class Lanes {
 public:
  /// `relay`: of this rank, null on one node.
  Lanes(int rank, const window::WindowLayout& layout, const memory::SharedRegion& windows,
        const routing::NodeMap& nodes, const window::RelayLayout* relay) noexcept
      : rank_(rank), layout_(&layout), windows_(&windows), nodes_(&nodes), relay_(relay) {}

  bool reached(int peer) const noexcept { return nodes_->together(peer, rank_); }

  std::byte* window(int rank) const noexcept { return windows_->base(rank); }

  std::uint64_t& told_out(int peer, protocol::Kind kind) const noexcept {
    if (!reached(peer)) return *at<std::uint64_t>(rank_, relay_->told(kind));
    return *at<std::uint64_t>(peer, layout_->told(rank_, kind));
  }
  std::uint64_t& told_in(int peer, protocol::Kind kind) const noexcept {
    return *at<std::uint64_t>(rank_, layout_->told(peer, kind));
  }
  std::uint64_t& accusation_out(int peer) const noexcept {
    if (!reached(peer)) return *at<std::uint64_t>(rank_, relay_->accusation(peer));
    return *at<std::uint64_t>(peer, layout_->accusation(rank_));
  }
  std::uint64_t& accusation_in(int peer) const noexcept {
    return *at<std::uint64_t>(rank_, layout_->accusation(peer));
  }
  /// Of a rank of another node; and, in worlds of several nodes, of any.
  std::uint64_t& beats_in(int peer) const noexcept {
    return *at<std::uint64_t>(rank_, layout_->beats(peer));
  }
  std::uint64_t& gone_in(int peer) const noexcept {
    return *at<std::uint64_t>(rank_, layout_->gone(peer));
  }
  /// Whether the relay of a rank of this node runs.
  const std::uint64_t& relay_of(int neighbour) const noexcept {
    return *at<std::uint64_t>(neighbour, relay_->closed());
  }
  protocol::Cell& cell_out(int peer, protocol::CellKind kind, int bank) const noexcept {
    return *at<protocol::Cell>(peer, layout_->cell(rank_, kind, bank));
  }
  protocol::Cell& cell_in(int peer, protocol::CellKind kind, int bank) const noexcept {
    return *at<protocol::Cell>(rank_, layout_->cell(peer, kind, bank));
  }
  std::byte* dispatch_header_out(int peer, int bank, int slot) const noexcept {
    return window(peer) + layout_->dispatch_header(rank_, bank, slot);
  }
  const std::byte* dispatch_header_in(int peer, int bank, int slot) const noexcept {
    return window(rank_) + layout_->dispatch_header(peer, bank, slot);
  }
  float* given_weights_out(int peer, int bank, int record) const noexcept {
    return at<float>(peer, layout_->given_weights(rank_, bank, record));
  }
  const float* given_weights_in(int peer, int bank, int record) const noexcept {
    return at<float>(rank_, layout_->given_weights(peer, bank, record));
  }
  std::uint32_t* combine_mask_out(int peer, int bank, int slot) const noexcept {
    return at<std::uint32_t>(peer, layout_->combine_mask(rank_, bank, slot));
  }
  const std::uint32_t* combine_mask_in(int peer, int bank, int slot) const noexcept {
    return at<std::uint32_t>(rank_, layout_->combine_mask(peer, bank, slot));
  }
  float* row_weights_out(int peer, int bank, int record) const noexcept {
    return at<float>(peer, layout_->row_weights(rank_, bank, record));
  }
  const float* row_weights_in(int peer, int bank, int record) const noexcept {
    return at<float>(rank_, layout_->row_weights(peer, bank, record));
  }
  std::int32_t* route_rows_out(int peer, int bank, int record) const noexcept {
    return at<std::int32_t>(peer, layout_->route_rows(rank_, bank, record));
  }
  const std::int32_t* route_rows_in(int peer, int bank, int record) const noexcept {
    return at<std::int32_t>(rank_, layout_->route_rows(peer, bank, record));
  }
  std::byte* combine_row_out(int peer, int bank, int slot) const noexcept {
    return window(peer) + layout_->combine_row(rank_, bank, slot);
  }

 private:
  template <typename T>
  T* at(int rank, std::size_t offset) const noexcept {
    return reinterpret_cast<T*>(window(rank) + offset);
  }

  int rank_;
  const window::WindowLayout* layout_;
  const memory::SharedRegion* windows_;
  const routing::NodeMap* nodes_;
  const window::RelayLayout* relay_;
};

}  // namespace sluice::engine::cpu
