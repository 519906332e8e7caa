// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/cuda/ferry_launcher.hpp"
#include "protocol/signals.hpp"
#include "relay/site.hpp"

namespace sluice::engine::cuda {

class LaneView;
/// By the progress threads of this node, or by this rank's kernels: nothing of it is awaited any more.
bool given_up(const relay::Site& site, const LaneView& view, int peer) noexcept;

/// As an index.
inline std::size_t at(int value) noexcept {
  return static_cast<std::size_t>(value);
}

/// Reads packets in this rank's host memory: those that its kernels have written for other nodes, and those that have
/// landed here. A lane is its offset there.
class LaneView {
 public:
  using Packet = std::array<std::uint32_t, 4>;
  /// Tokens, first and behind the last.
  struct Range {
    int begin = 0;
    int end = 0;
    bool empty() const noexcept { return begin >= end; }
  };

  /// `port` outlives the view.
  explicit LaneView(const FerryPort& port) noexcept
      : port_(port),
        tokens_(port.layout.shape().tokens),
        slots_(tokens_ * port.layout.shape().combine_rows_per_token) {}

  int tokens() const noexcept { return tokens_; }
  /// Rows of an answer.
  int slots() const noexcept { return slots_; }
  const window::PacketLayout& layout() const noexcept { return port_.layout; }
  const window::FarLanes& lanes(int rank) const noexcept { return port_.lanes[at(rank)]; }
  int bank(std::uint64_t epoch) const noexcept {
    return static_cast<int>((epoch - 1) % at(port_.layout.shape().banks));
  }

  /// Rows are staged once for all nodes, and their targets said beside them.
  bool throughput() const noexcept { return layout().shape().stages > 0; }

  const std::byte* host(std::size_t offset) const noexcept { return port_.host + offset; }
  Packet packet(std::size_t offset) const noexcept;
  /// Whether the cell of a lane is one of the epoch.
  bool has_cell(std::size_t lane, protocol::CellKind kind, std::uint64_t epoch) const noexcept {
    return packet(lane + layout().cell(kind, bank(epoch)))[0] == window::tag_of(epoch);
  }
  /// Whether a dispatch's cell in the lane of `rank`, or `targets` in throughput mode, announce a record of the token.
  bool comes(std::size_t lane, std::size_t targets, int rank, int bank, int token) const noexcept;
  /// Those whose packet at `offset`, `stride` apart, has the tag of the epoch, and what lies between.
  Range tagged(std::size_t offset, std::size_t stride, std::uint64_t epoch) const noexcept;
  /// The routes of a dispatch in a lane. A cached one has none.
  Range routes(std::size_t lane, std::uint64_t epoch) const noexcept;
  /// Offset of a dispatched row among those to `peer` in a rank's memory of rows, or among those from a source there.
  std::size_t row_to(int rank, int peer, int bank, int token) const noexcept;
  std::size_t row_from(int rank, int source, int bank, int token) const noexcept;
  /// Of the records that a cell announces.
  std::size_t record_bytes(std::size_t lane, protocol::CellKind kind, int bank) const noexcept;
  /// Whether a combine's cell says that weights come in a message before the answers.
  bool weights_before(std::size_t lane, int bank) const noexcept;
  /// Whether a combine's cell says that every route has a row of its own.
  bool row_per_route(std::size_t lane, int bank) const noexcept;
  /// Whether a combine's cell says that what goes to other nodes is added up there first.
  bool by_node(std::size_t lane, int bank) const noexcept;
  /// Then: the codec of the rows, and up to which token there may be any.
  std::uint32_t codec(std::size_t lane, int bank) const noexcept;
  static DType dtype_of(std::int32_t codec) noexcept {
    return codec == 2 ? DType::f32 : codec == 1 ? DType::f16 : DType::bf16;
  }
  int answered_tokens(std::size_t lane, int bank) const noexcept;
  /// Ranks that this rank's kernels have given up, as far as operations have ended.
  std::uint32_t missing() const noexcept;
  /// The same at once: of whom what was published before this call may lack parts.
  std::uint32_t suspects() const noexcept;
  bool suspects(int peer) const noexcept { return ((suspects() >> peer) & 1U) != 0; }
  /// Whether an answer in a lane has a row in this slot.
  bool has_row(std::size_t lane, std::uint64_t epoch, int slot) const noexcept;

 private:
  /// Tokens of a call, by its cell of throughput mode.
  int tokens_of(std::size_t lane, int bank) const noexcept;
  /// What a cell says of its rows (window::kFormFlags).
  std::uint32_t form(std::size_t lane, protocol::CellKind kind, int bank) const noexcept;

  const FerryPort& port_;
  const int tokens_;
  const int slots_;
};

}  // namespace sluice::engine::cuda
