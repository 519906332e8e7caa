// SPDX-License-Identifier: MIT
#include "engine/cuda/lane_view.hpp"

#include <atomic>
#include <cstring>

#include "protocol/host_access.hpp"

namespace sluice::engine::cuda {

using protocol::CellKind;
using window::kPacketBytes;

LaneView::Packet LaneView::packet(std::size_t offset) const noexcept {
  Packet packet;
  std::memcpy(packet.data(), host(offset), kPacketBytes);
  return packet;
}

bool LaneView::comes(std::size_t lane, std::size_t targets, int rank, int bank,
                     int token) const noexcept {
  if (throughput()) {
    if (token >= tokens_of(lane, bank)) return false;
    std::uint32_t ranks = 0;
    std::memcpy(&ranks, host(targets + at(token) * sizeof(ranks)), sizeof(ranks));
    return ((ranks >> rank) & 1U) != 0;
  }
  const Packet bits = packet(lane + port_.layout.cell(CellKind::dispatch, bank) +
                             at(window::bit_packet(token)) * kPacketBytes);
  if (token < window::kFirstTokens) return ((bits[3] >> token) & 1U) != 0;
  const int bit = (token - window::kFirstTokens) % window::kPacketTokens;
  return ((bits[at(1 + bit / 32)] >> (bit % 32)) & 1U) != 0;
}

LaneView::Range LaneView::tagged(std::size_t offset, std::size_t stride,
                                 std::uint64_t epoch) const noexcept {
  Range range;
  for (int token = 0; token < tokens_; ++token) {
    if (packet(offset + at(token) * stride)[0] != window::tag_of(epoch)) continue;
    if (range.end == 0) range.begin = token;
    range.end = token + 1;
  }
  return range;
}

int LaneView::tokens_of(std::size_t lane, int bank) const noexcept {
  const Packet cell = packet(lane + port_.layout.cell(CellKind::dispatch, bank));
  return static_cast<int>(cell[3] & ~window::kStagingFlag);
}

LaneView::Range LaneView::routes(std::size_t lane, std::uint64_t epoch) const noexcept {
  const window::PacketLayout& of = layout();
  const std::size_t first = lane + of.route(bank(epoch), 0, 0);
  if (!throughput())
    return tagged(first, of.route(bank(epoch), 1, 0) - of.route(bank(epoch), 0, 0), epoch);
  // Of every token, or of none.
  return {0, packet(first)[0] == window::tag_of(epoch) ? tokens_of(lane, bank(epoch)) : 0};
}

std::size_t LaneView::row_to(int rank, int peer, int bank, int token) const noexcept {
  const window::FarLanes& of = lanes(rank);
  return throughput() ? of.stage() + layout().staged_offset(bank, token)
                      : of.out_row(peer, layout().dispatch_row(bank, token));
}

std::size_t LaneView::row_from(int rank, int source, int bank, int token) const noexcept {
  const window::FarLanes& of = lanes(rank);
  return throughput() ? of.landing(source) + layout().staged_offset(bank, token)
                      : of.in_row(source, layout().dispatch_row(bank, token));
}

std::uint32_t LaneView::form(std::size_t lane, CellKind kind, int bank) const noexcept {
  const Packet packet_of_form =
      packet(lane + port_.layout.cell(kind, bank) + window::kFormPacket * kPacketBytes);
  // In throughput mode the first word says where rows lie that peers read in place.
  return packet_of_form[throughput() ? 2 : 1];
}

std::size_t LaneView::record_bytes(std::size_t lane, CellKind kind, int bank) const noexcept {
  return at(static_cast<int>(form(lane, kind, bank) & ~window::kFormFlags)) * kPacketBytes;
}

bool LaneView::weights_before(std::size_t lane, int bank) const noexcept {
  return (form(lane, CellKind::combine, bank) & window::kWeightsBefore) != 0;
}

bool LaneView::row_per_route(std::size_t lane, int bank) const noexcept {
  return (form(lane, CellKind::combine, bank) & window::kRowPerRoute) != 0;
}

bool LaneView::by_node(std::size_t lane, int bank) const noexcept {
  return (form(lane, CellKind::combine, bank) & window::kByNode) != 0;
}

std::uint32_t LaneView::codec(std::size_t lane, int bank) const noexcept {
  return (form(lane, CellKind::combine, bank) & window::kFormCodec) >> window::kFormCodecShift;
}

int LaneView::answered_tokens(std::size_t lane, int bank) const noexcept {
  return static_cast<int>(packet(lane + layout().cell(CellKind::combine, bank))[3]);
}

std::uint32_t LaneView::missing() const noexcept {
  std::uint32_t missing = 0;
  for (Totals& totals : static_cast<Board*>(port_.board.get())->totals) {
    // Pairs with the store in add_totals(), which need order nothing; but what is looked at next is looked at afterwards.
    missing |= std::atomic_ref<std::uint32_t>(totals.missing).load(std::memory_order_acquire);
  }
  return missing;
}

std::uint32_t LaneView::suspects() const noexcept {
  std::uint32_t suspects = 0;
  for (int peer = 0; peer < layout().shape().ranks; ++peer) {
    std::uint8_t& word = static_cast<Board*>(port_.board.get())->suspected[peer];
    // Pairs with the store in suspect(), which is ordered by what is published after it; here as above.
    if (std::atomic_ref<std::uint8_t>(word).load(std::memory_order_acquire) != 0) {
      suspects |= 1U << peer;
    }
  }
  return suspects;
}

bool given_up(const relay::Site& site, const LaneView& view, int peer) noexcept {
  // Pairs with Site::give_up.
  return ((view.missing() >> peer) & 1U) != 0 ||
         protocol::HostAccess::load_acquire(
             *site.at<const std::uint64_t>(site.rank, site.window.gone(peer))) != 0;
}

bool LaneView::has_row(std::size_t lane, std::uint64_t epoch, int slot) const noexcept {
  const int each = port_.layout.shape().combine_rows_per_token;
  const Packet answer = packet(lane + port_.layout.answer(bank(epoch), slot / each));
  if (answer[0] != window::tag_of(epoch)) return false;
  // Of what its cell says: the sum of a record in its first slot, or each row in that of its route.
  if (!row_per_route(lane, bank(epoch))) return slot % each == 0 && answer[3] != 0;
  return ((answer[3] >> (slot % each)) & 1U) != 0;
}

}  // namespace sluice::engine::cuda
