// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "numeric/host_device.hpp"
#include "protocol/cell.hpp"
#include "window/window_layout.hpp"

/// The bytes of one rank's window where arrival is carried by the data, one source for host and
/// device: every 16-byte packet says by itself whether it has come.
///
///   window        := lane[R] stage[Bs] landing[served][Bs]    (lane j: written by rank j only)
///   lane          := told[2] (with an accusation) cell[kinds][B] dispatch_bank[B] combine_bank[B]
///                    (combine_row[C])[B] (dispatch_row[S])[B]
///   cell          := packet[P]
///   dispatch_bank := count[L'] route[S][K] staged[S'] part[16]
///   combine_bank  := weight[S][W] answer[S] row_weight[S][W]
///   stage         := dispatch_row[S]                          (written by its owner, read by all)
///   landing       := dispatch_row[S]                          (of a rank of another node, for all of this one)
/// Behind it, where nodes are added up: SumLanes.
/// S = slot_tokens, C = S, times K if `single` may be used, W = ceil(K / 3), L' = the most experts of
/// a rank, P: see cell_packets(). Bs = S' = 0 in latency mode, and no parts, else B and S, and then there are no dispatch_rows in
/// lanes. Slots are numbered by tokens: of the source in dispatch, of home in
/// combine. So a record's place needs nothing but its token, and a cell says which tokens come.
///
/// Rows are poisoned: an empty packet's last word is kPoison, which no codec emits; who reads a
/// packet empties it again. All other packets carry the tag of their operation's epoch in their
/// first word and are never emptied.
namespace sluice::window {

inline constexpr std::size_t kPacketBytes = 16;
/// The last word of an empty packet.
inline constexpr std::uint32_t kPoison = 0xFFFFFFFFU;
/// Elements of one fp8 unit: their scales fill packets of their own.
inline constexpr int kUnitElements = 512;
/// Weights in one packet beside its tag.
inline constexpr int kPacketWeights = 3;

#if SLUICE_CUDA_SIMULATED
inline constexpr std::uint64_t kFirstTag = 0x3FFF'FFF0;  // So that tests see tags come again.
#else
inline constexpr std::uint64_t kFirstTag = 0;
#endif

/// The tag of an epoch. Never that of memory that nobody has written: all ones in windows, zero in a host's memory for other
/// nodes. A tag comes again after 2^30 operations, but then in another bank, since their
/// number is odd (unless there is one): a packet would have to lie unread for 2^30 * B operations to look fresh.
SLUICE_INLINE constexpr std::uint32_t tag_of(std::uint64_t epoch) {
  return static_cast<std::uint32_t>((epoch + kFirstTag) & 0x3FFF'FFFF) | 0x4000'0000;
}

/// In the last word of a dispatch's cell, beside the tokens of the call, in throughput mode: rows, or their scales, are being
/// staged, and of each it will be said that it is there.
inline constexpr std::uint32_t kStagingFlag = 1U << 31;

/// Of as many parts of a call's tokens it is said that all of their rows are staged.
inline constexpr int kStagedParts = 16;
/// A part has the same power of two of tokens, but for the last ones, which have fewer or none.
class StagedParts {
 public:
  SLUICE_INLINE explicit constexpr StagedParts(int tokens) : tokens_(tokens) {
    while (tokens > kStagedParts << shift_) ++shift_;
  }
  SLUICE_INLINE constexpr int part_of(int token) const { return token >> shift_; }
  SLUICE_INLINE constexpr int first(int part) const {
    return part << shift_ < tokens_ ? part << shift_ : tokens_;
  }

 private:
  int tokens_;
  int shift_ = 0;
};

/// Packets of a cell: what comes, with a bit for each of the first tokens; of how many packets a
/// record is; then bits of further tokens.
inline constexpr int kFormPacket = 1;
inline constexpr int kFirstTokens = 32;
inline constexpr int kPacketTokens = 96;
/// In a combine's form packet, beside how many packets a row is: each route's row comes, in its slot; else a record's
/// sum, in its first.
inline constexpr std::uint32_t kRowPerRoute = 1U << 31;
/// Likewise: weights were given to the combine, and go to other nodes before the answers.
inline constexpr std::uint32_t kWeightsBefore = 1U << 30;
/// Likewise: what goes to other nodes is added up there by ranks of this one (`reduce = node`).
inline constexpr std::uint32_t kByNode = 1U << 29;
/// And the codec of the rows, for who adds them up: 0 bf16, 1 f16, 2 f32.
inline constexpr int kFormCodecShift = 27;
inline constexpr std::uint32_t kFormCodec = 3U << kFormCodecShift;
inline constexpr std::uint32_t kFormFlags = kRowPerRoute | kWeightsBefore | kByNode | kFormCodec;
/// The packet with the bit of `token`.
SLUICE_INLINE constexpr int bit_packet(int token) {
  return token < kFirstTokens ? 0 : kFormPacket + 1 + (token - kFirstTokens) / kPacketTokens;
}
/// Packets of a cell that has bits of `tokens` tokens.
SLUICE_INLINE constexpr int cell_packets(int tokens) {
  return tokens <= kFirstTokens ? kFormPacket + 1 : bit_packet(tokens - 1) + 1;
}

/// What the layout depends on. Equal on all ranks.
struct PacketShape {
  int ranks = 0;
  int top_k = 0;
  int banks = 0;          // B, odd
  int tokens = 0;         // S
  int local_experts = 0;  // L'
  int combine_rows_per_token = 1;
  std::size_t dispatch_row_bytes = 0;  // data and scale packets of one record, of any call
  std::size_t combine_row_bytes = 0;
  int cell_tokens = 0;  // Cells have bits of so many tokens.
  int stages = 0;       // Bs
  int served =
      0;  // The most ranks of other nodes that one passes on rows of, where there are stages.
};

/// Packets with the scales of one unit, `group` elements to a scale of `scale_bytes`.
constexpr int scale_packets_per_unit(int group, int scale_bytes) noexcept {
  return (kUnitElements / group * scale_bytes + static_cast<int>(kPacketBytes) - 1) /
         static_cast<int>(kPacketBytes);
}

/// Offsets are sums of 32-bit products, so that a device computes them in a few instructions; a lane
/// is smaller than 4 GiB (see valid()).
class PacketLayout {
 public:
  PacketLayout() = default;
  explicit constexpr PacketLayout(const PacketShape& shape) noexcept : shape_(shape) {
    const auto slots = wide(shape.tokens);
    const auto k = wide(shape.top_k);
    const std::size_t weights =
        wide((shape.top_k + kPacketWeights - 1) / kPacketWeights) * kPacketBytes;
    std::size_t end = protocol::kKinds * kLineBytes;
    const auto take = [&](std::size_t bytes) {
      const std::size_t at = round_up(end, kRowAlignment);
      end = at + bytes;
      return at;
    };
    const std::size_t cell = wide(cell_packets(shape.cell_tokens)) * kPacketBytes;
    const std::size_t cells = take(protocol::kCellKinds * wide(shape.banks) * cell);
    const std::size_t dispatch_banks = round_up(end, kRowAlignment);
    const std::size_t dispatch_row = round_up(shape.dispatch_row_bytes, kRowAlignment);
    const std::size_t counts = take(wide(shape.local_experts) * sizeof(std::uint64_t));
    const std::size_t routes = take(slots * k * kPacketBytes);
    const std::size_t staged_words =
        take(shape.stages == 0 ? 0 : (slots + kStagedParts) * sizeof(std::uint32_t));
    const std::size_t dispatch_bank = round_up(end, kRowAlignment) - dispatch_banks;
    end = dispatch_banks + wide(shape.banks) * dispatch_bank;
    const std::size_t combine_banks = end;
    const std::size_t combine_row = round_up(shape.combine_row_bytes, kRowAlignment);
    const std::size_t given_weights = take(slots * weights);
    const std::size_t answers = take(slots * kPacketBytes);
    const std::size_t row_weights = take(slots * weights);
    const std::size_t combine_bank = round_up(end, kRowAlignment) - combine_banks;
    const std::size_t combine_rows = combine_banks + wide(shape.banks) * combine_bank;
    const std::size_t combine_row_bank = slots * wide(shape.combine_rows_per_token) * combine_row;
    const std::size_t dispatch_rows = combine_rows + wide(shape.banks) * combine_row_bank;
    const std::size_t row_bank = shape.stages == 0 ? slots * dispatch_row : 0;
    const std::size_t lane = dispatch_rows + wide(shape.banks) * row_bank;

    valid_ = lane <= UINT32_MAX;
    cells_ = narrow(cells);
    cell_ = narrow(cell);
    counts_ = narrow(counts);
    routes_ = narrow(routes);
    staged_words_ = narrow(staged_words);
    dispatch_rows_ = narrow(dispatch_rows);
    dispatch_row_ = narrow(dispatch_row);
    dispatch_bank_ = narrow(dispatch_bank);
    row_bank_ = narrow(row_bank);
    heads_end_ = narrow(combine_banks);
    given_weights_ = narrow(given_weights);
    answers_ = narrow(answers);
    row_weights_ = narrow(row_weights);
    combine_rows_ = narrow(combine_rows);
    combine_row_ = narrow(combine_row);
    combine_bank_ = narrow(combine_bank);
    combine_row_bank_ = narrow(combine_row_bank);
    lane_ = narrow(lane);
    route_row_ = narrow(k * kPacketBytes);
    weight_row_ = narrow(weights);
    stages_ = round_up(wide(shape.ranks) * lane, kPageBytes);
    stage_ = slots * dispatch_row;
    bytes_ = round_up(stages_ + wide(1 + shape.served) * wide(shape.stages) * stage_, kPageBytes);
  }

  /// Whether the offsets can be represented.
  constexpr bool valid() const noexcept { return valid_; }
  SLUICE_INLINE constexpr const PacketShape& shape() const { return shape_; }
  SLUICE_INLINE constexpr std::size_t bytes() const { return bytes_; }
  /// Packets that hold one f32 per route.
  SLUICE_INLINE constexpr int weight_packets() const {
    return static_cast<int>(weight_row_ / kPacketBytes);
  }

  /// Offset of the lane of `peer` from the window's base.
  SLUICE_INLINE constexpr std::size_t lane(int peer) const {
    return std::size_t{static_cast<std::uint32_t>(peer)} * lane_;
  }

  /// Offset of the staged row of `token` from the window's base.
  SLUICE_INLINE constexpr std::size_t staged_row(int bank, int token) const {
    return stages_ + staged_offset(bank, token);
  }
  /// From the first row of all stages on; of all landings of a source, too.
  SLUICE_INLINE constexpr std::size_t staged_offset(int bank, int token) const {
    return static_cast<std::size_t>(bank) * stage_ +
           static_cast<std::size_t>(token) * dispatch_row_;
  }
  /// Offset from the window's base of the landings of the `place`-th rank that its owner serves.
  constexpr std::size_t landings(int place) const noexcept {
    return stages_ + wide(1 + place) * stages_bytes();
  }
  /// Of all stages.
  constexpr std::size_t stages_bytes() const noexcept { return wide(shape_.stages) * stage_; }

  SLUICE_INLINE constexpr std::size_t staged_row_stride() const { return dispatch_row_; }

  // Bytes of a lane: all; all before its rows of dispatch; before all rows; before what belongs to combine, too.
  constexpr std::size_t lane_bytes() const noexcept { return lane_; }
  constexpr std::size_t short_lane_bytes() const noexcept { return dispatch_rows_; }
  constexpr std::size_t rows_begin() const noexcept { return combine_rows_; }
  constexpr std::size_t head_bytes() const noexcept { return heads_end_; }
  /// Of what belongs to combine.
  constexpr std::size_t answers_bytes() const noexcept { return dispatch_rows_ - heads_end_; }
  constexpr std::size_t cell_bytes() const noexcept { return cell_; }
  constexpr std::size_t weight_bytes() const noexcept { return weight_row_; }
  constexpr std::size_t combine_row_stride() const noexcept { return combine_row_; }

  // Offsets from a lane's base.
  SLUICE_INLINE constexpr std::uint32_t told(protocol::Kind kind) const {
    return product(static_cast<int>(kind), kLineBytes);
  }
  /// Beside it: not zero once the peer has given this rank up, and may overwrite what it reads.
  SLUICE_INLINE constexpr std::uint32_t accusation() const { return sizeof(std::uint64_t); }
  SLUICE_INLINE constexpr std::size_t told_bytes() const { return protocol::kKinds * kLineBytes; }
  SLUICE_INLINE constexpr std::uint32_t cell(protocol::CellKind kind, int bank) const {
    return cells_ + product(static_cast<int>(kind) * shape_.banks + bank, cell_);
  }
  SLUICE_INLINE constexpr std::uint32_t count(int bank, int expert) const {
    return counts_ + product(bank, dispatch_bank_) + product(expert, 8);
  }
  SLUICE_INLINE constexpr std::uint32_t route(int bank, int slot, int k) const {
    return routes_ + product(bank, dispatch_bank_) + product(slot, route_row_) +
           product(k, kPacketBytes);
  }
  /// Tag of the operation whose row of `token` lies in the stage of the lane's writer.
  SLUICE_INLINE constexpr std::uint32_t staged_word(int bank, int token) const {
    return staged_words_ + product(bank, dispatch_bank_) + product(token, sizeof(std::uint32_t));
  }
  /// The same of all rows of a part (StagedParts). Only who stages them says so, not who brings them from another node.
  SLUICE_INLINE constexpr std::uint32_t staged_part(int bank, int part) const {
    return staged_word(bank, shape_.tokens + part);
  }
  SLUICE_INLINE constexpr std::uint32_t dispatch_row(int bank, int slot) const {
    return dispatch_rows_ + product(bank, row_bank_) + product(slot, dispatch_row_);
  }
  SLUICE_INLINE constexpr std::uint32_t weight(int bank, int token) const {
    return given_weights_ + product(bank, combine_bank_) + product(token, weight_row_);
  }
  /// Of a sum of a node, where no weights are given: the last epoch of which all has come.
  SLUICE_INLINE constexpr std::uint32_t summed(int bank) const { return weight(bank, 0); }
  SLUICE_INLINE constexpr std::uint32_t answer(int bank, int token) const {
    return answers_ + product(bank, combine_bank_) + product(token, kPacketBytes);
  }
  SLUICE_INLINE constexpr std::uint32_t row_weight(int bank, int token) const {
    return row_weights_ + product(bank, combine_bank_) + product(token, weight_row_);
  }
  SLUICE_INLINE constexpr std::uint32_t combine_row(int bank, int slot) const {
    return combine_rows_ + product(bank, combine_row_bank_) + product(slot, combine_row_);
  }

 private:
  static constexpr std::size_t wide(int value) noexcept { return static_cast<std::size_t>(value); }
  static constexpr std::uint32_t narrow(std::size_t value) noexcept {
    return static_cast<std::uint32_t>(value);
  }
  SLUICE_INLINE static constexpr std::uint32_t product(int index, std::size_t stride) {
    return static_cast<std::uint32_t>(index) * static_cast<std::uint32_t>(stride);
  }

  PacketShape shape_;
  bool valid_ = false;
  // Within a lane, of bank 0; then strides.
  std::uint32_t cells_ = 0;
  std::uint32_t cell_ = 0;
  std::uint32_t counts_ = 0;
  std::uint32_t routes_ = 0;
  std::uint32_t staged_words_ = 0;
  std::uint32_t dispatch_rows_ = 0;
  std::uint32_t given_weights_ = 0;
  std::uint32_t answers_ = 0;
  std::uint32_t row_weights_ = 0;
  std::uint32_t combine_rows_ = 0;
  std::uint32_t dispatch_row_ = 0;
  std::uint32_t dispatch_bank_ = 0;
  std::uint32_t row_bank_ = 0;
  std::uint32_t heads_end_ = 0;
  std::uint32_t combine_row_ = 0;
  std::uint32_t combine_bank_ = 0;
  std::uint32_t combine_row_bank_ = 0;
  std::uint32_t route_row_ = 0;
  std::uint32_t weight_row_ = 0;
  std::uint32_t lane_ = 0;
  std::size_t stages_ = 0;
  std::size_t stage_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace sluice::window
