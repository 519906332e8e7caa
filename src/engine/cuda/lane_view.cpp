// SPDX-License-Identifier: MIT
#include "engine/cuda/lane_view.hpp"

#include <cstring>

namespace sluice::engine::cuda {

using protocol::CellKind;
using window::kPacketBytes;

LaneView::Packet LaneView::packet(std::size_t offset) const noexcept {
  Packet packet;
  std::memcpy(packet.data(), host(offset), kPacketBytes);
  return packet;
}

bool LaneView::comes(std::size_t lane, int bank, int token) const noexcept {
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

std::size_t LaneView::record_bytes(std::size_t lane, CellKind kind, int bank) const noexcept {
  const Packet form =
      packet(lane + port_.layout.cell(kind, bank) + window::kFormPacket * kPacketBytes);
  return at(static_cast<int>(form[1] & ~window::kFormFlags)) * kPacketBytes;
}

bool LaneView::weights_before(std::size_t lane, int bank) const noexcept {
  const Packet form = packet(lane + port_.layout.cell(CellKind::combine, bank) +
                             window::kFormPacket * kPacketBytes);
  return (form[1] & window::kWeightsBefore) != 0;
}

bool LaneView::has_row(std::size_t lane, std::uint64_t epoch, int slot) const noexcept {
  const int each = port_.layout.shape().combine_rows_per_token;
  const Packet answer = packet(lane + port_.layout.answer(bank(epoch), slot / each));
  if (answer[0] != window::tag_of(epoch)) return false;
  // Of what its cell says: the sum of a record in its first slot, or each row in that of its route.
  const Packet form = packet(lane + port_.layout.cell(CellKind::combine, bank(epoch)) +
                             window::kFormPacket * kPacketBytes);
  if ((form[1] & window::kRowPerRoute) == 0) return slot % each == 0 && answer[3] != 0;
  return ((answer[3] >> (slot % each)) & 1U) != 0;
}

}  // namespace sluice::engine::cuda
