// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/dispatch_numbers.cuh"
#include "engine/cuda/recorder.cuh"

/// dispatch, receive half: every warp takes a piece of a record out of its slot, when it has come,
/// and copies it to its row or rows, whose numbers follow from the counts of all sources.
namespace sluice::engine::cuda {

/// The first `count` bits of a word.
__device__ __forceinline__ std::uint32_t low_bits(int count) {
  if (count <= 0) return 0;
  return count >= 32 ? ~0U : (1U << count) - 1U;
}

/// How a warp finds the number of the record of `token` of `source` among all that this rank receives: records of lower
/// sources, and earlier tokens of this one. Lane i has the first packet of rank i, and lane kPeersMax + i the i-th
/// packet with bits of the source.
class RecordIndex {
 public:
  __device__ __forceinline__ RecordIndex(std::uint32_t suspects, int source, int token, int lane)
      : counts_(lane < source),
        bits_(lane - kPeersMax),
        before_(token -
                (bits_ == 0 ? 0 : window::kFirstTokens + (bits_ - 1) * window::kPacketTokens)),
        asks_(counts_ ? ((suspects >> lane) & 1U) == 0 : bits_ >= 0 && before_ > 0),
        packet_(counts_ || bits_ <= 0 ? 0 : bits_ + window::kFormPacket),
        from_(counts_ ? lane : source) {}

  /// Whether this lane needs a packet, which one, and of whose cell.
  __device__ __forceinline__ bool asks() const { return asks_; }
  __device__ __forceinline__ int packet() const { return packet_; }
  __device__ __forceinline__ int from() const { return from_; }

  /// v: the packet asked for.
  __device__ __forceinline__ int operator()(uint4 v, std::uint32_t signature) const {
    int value = 0;
    if (asks_ && counts_) {
      PeerCell cell;
      cell.read(v, signature);
      value = cell.records();
    } else if (asks_ && bits_ == 0) {
      value = __popc(v.w & low_bits(before_));
    } else if (asks_) {
      value = __popc(v.y & low_bits(before_)) + __popc(v.z & low_bits(before_ - 32)) +
              __popc(v.w & low_bits(before_ - 64));
    }
    return __reduce_add_sync(~0U, value);
  }

 private:
  bool counts_;
  int bits_;
  int before_;
  bool asks_;
  int packet_;
  int from_;
};

/// That number, or below zero if the warp has become weary. By one warp.
static __device__ __noinline__ int record_index(const DispatchArgs* a, std::uint32_t tag,
                                                std::uint32_t signature, std::uint32_t suspects,
                                                int bank, int source, int token) {
  const Geometry& g = a->geometry;
  const RecordIndex index(suspects, source, token, static_cast<int>(threadIdx.x % 32));
  const std::byte* const at =
      in_at(g, index.from(), g.layout.cell(protocol::CellKind::dispatch, bank)) +
      index.packet() * window::kPacketBytes;
  uint4 v = make_uint4(tag, 0, 0, 0);
  Polls polls;
  if (index.asks()) v = load_packet(at);  // Pairs with send_cell() of the peer.
#pragma unroll 1
  while (!__all_sync(~0U, v.x == tag)) {
    if (polls.weary()) return -1;
    if (index.asks()) v = load_packet(at);
  }
  return index(v, signature);
}
static __device__ __noinline__ int record_index_slowly(Late late, int source, int token) {
  const Receipt r = receipt_of(late);
  const RecordIndex index(r.suspects, source, token, static_cast<int>(threadIdx.x % 32));
  uint4 v = make_uint4(r.tag, 0, 0, 0);
  if (index.asks()) v = await_cell(r, index.from(), index.packet());
  __syncwarp();
  return index(v, r.signature);
}

/// The scales in packet `lane` of a unit, into the row's scales, in any form and stride. Rare.
static __device__ __noinline__ void store_scales(const DispatchArgs* a, std::byte* out, int unit,
                                                 int lane, uint4 packet) {
  const std::uint32_t words[4] = {packet.x, packet.y, packet.z, packet.w};
  const std::int64_t stride = a->scales.element_stride;
  const int groups = groups_per_unit(*a);
  const int all = (a->geometry.hidden + a->codec.group - 1) >> (31 - __clz(a->codec.group));
  const int first = unit * groups;
  if (a->codec.scale_form != ScaleForm::ue8m0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int group = lane * 4 + i;
      if (group < groups && first + group < all) {
        *reinterpret_cast<std::uint32_t*>(out + (first + group) * stride) = words[i];
      }
    }
    return;
  }
  const auto mask_scales = [](std::uint32_t word, int count) {  // The others are zero.
    return count >= 4 ? word : word & ((1U << (8 * count)) - 1U);
  };
  if (groups == 2) {  // Half a word; the last one fills its word up.
    std::byte* const word = out + first / 4 * stride + first % 4;
    if (first % 4 == 0 && first + groups >= all) {
      *reinterpret_cast<std::uint32_t*>(word) = mask_scales(words[0], all - first);
    } else {
      *reinterpret_cast<std::uint16_t*>(word) =
          static_cast<std::uint16_t>(mask_scales(words[0], all - first));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int group = first + i * 4;
    if (i * 4 < groups && group < all) {
      *reinterpret_cast<std::uint32_t*>(out + group / 4 * stride) =
          mask_scales(words[i], all - group);
    }
  }
}

/// What a warp takes: kSpan units of one record.
template <typename Encoder, int kSpan>
class Piece {
 public:
  __device__ __forceinline__ Piece(const DispatchArgs& a, std::byte* row, int unit, int lane)
      : Piece(a, row, row + a.row_bytes, unit, lane) {}
  /// With the scales elsewhere.
  __device__ __forceinline__ Piece(const DispatchArgs& a, std::byte* row, std::byte* scales,
                                   int unit, int lane)
      : first_byte_((unit * kVectors * 32 + lane) * 16),  // Packets are 512 bytes apart.
        unit_(unit),
        data_at_(row + first_byte_),
        scale_at_(scales + (unit * a.scale_packets + lane) * 16),
        packets_((a.row_bytes - first_byte_ + 511) / 512),
        has_scales_(kScaled && lane < a.scale_packets) {}

  __device__ __forceinline__ void load(const DispatchArgs& a) {
#pragma unroll
    for (int j = 0; j < kPackets; ++j) {
      if (j < packets_) data_[j] = load_packet(data_at_ + j * 512);
    }
    if constexpr (kScaled) {
#pragma unroll
      for (int s = 0; s < kSpan; ++s) {
        if (scaled(a, s)) scale_[s] = load_packet(scale_at_ + s * a.scale_packets * 16);
      }
    }
  }
  __device__ __forceinline__ bool here() const {
    bool all = true;
#pragma unroll
    for (int j = 0; j < kPackets; ++j) all = all && data_[j].w != window::kPoison;
#pragma unroll
    for (int s = 0; kScaled && s < kSpan; ++s) all = all && scale_[s].w != window::kPoison;
    return all;
  }
  __device__ __forceinline__ void clear(const DispatchArgs& a) const {
#pragma unroll
    for (int j = 0; j < kPackets; ++j) {
      if (j < packets_) clear_packet(data_at_ + j * 512);
    }
#pragma unroll
    for (int s = 0; kScaled && s < kSpan; ++s) {
      if (scaled(a, s)) clear_packet(scale_at_ + s * a.scale_packets * 16);
    }
  }
  __device__ __forceinline__ void zero() {
#pragma unroll
    for (uint4& packet : data_) packet = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (uint4& packet : scale_) packet = make_uint4(0, 0, 0, 0);
  }

  /// Into its row, or rows: lane k has the row of route k.
  __device__ __forceinline__ void store(const Receipt& r, int row, int lane) const {
    constexpr bool kCommon = Encoder::kCommon;
    const DispatchArgs& a = r.a;
    std::uint32_t targets = lanes_with(row >= 0);
    if (r.layout == Layout::rank_major) targets &= ~targets + 1;  // One row, however many routes.
    std::byte* const own = row_of<kCommon>(a.out, row);
    std::byte* own_scales = nullptr;
    if constexpr (kScaled) own_scales = row_of<kCommon>(a.scales, row);
#pragma unroll 1
    for (; targets != 0; targets &= targets - 1) {
      const int k = __ffs(static_cast<int>(targets)) - 1;
      std::byte* const out = pointer_of(own, k) + first_byte_;
#pragma unroll
      for (int j = 0; j < kPackets; ++j) {
        if (j < packets_) {
          store_bytes<Encoder::kOutput>(out + j * 512, data_[j], kCommon || a.aligned);
        }
      }
      if constexpr (kScaled) {
        if (mutant(KernelMutant::scales_not_stored)) continue;
        std::byte* const scales = pointer_of(own_scales, k);
#pragma unroll
        for (int s = 0; s < kSpan; ++s) {
          if (!scaled(a, s)) continue;
          if (kCommon || a.whole_scales) {
            store16(scales + (unit_ + s) * 16, scale_[s]);
          } else {
            store_scales(&a, scales, unit_ + s, lane, scale_[s]);
          }
        }
      }
    }
  }

 private:
  static constexpr bool kScaled = Encoder::kOutput == 1;
  static constexpr int kVectors = Encoder::kVectors;
  static constexpr int kPackets = kSpan * kVectors;

  /// Whether this lane has scales of the s-th unit: a last piece may have fewer units.
  __device__ __forceinline__ bool scaled(const DispatchArgs& a, int s) const {
    return has_scales_ && (s == 0 || unit_ + s < static_cast<int>(a.units_divisor.divisor));
  }

  int first_byte_;
  int unit_;
  std::byte* data_at_;
  std::byte* scale_at_;
  int packets_;  // of this lane
  bool has_scales_;
  uint4 data_[kPackets] = {};
  uint4 scale_[kScaled ? kSpan : 1] = {};
};

/// What a source's cell says of `token`.
struct TokenBit {
  int packet;
  bool first;
  int bit;
  __device__ __forceinline__ explicit TokenBit(int token)
      : packet(window::bit_packet(token)),
        first(token < window::kFirstTokens),
        bit(first ? token : (token - window::kFirstTokens) % window::kPacketTokens) {}
  __device__ __forceinline__ bool in(uint4 v) const {
    const std::uint32_t bits = first || bit >= 64 ? v.w : (bit >= 32 ? v.z : v.y);
    return ((bits >> (bit % 32)) & 1U) != 0;
  }
};

/// What take_units() returns when it has taken nothing, and is weary.
inline constexpr int kSlowly = -1;

/// Takes kSpan units of the record of `token` of `source`, from `unit` on, if there is one. Returns
/// how many tokens that source has at most.
template <int kSpan, typename Encoder, bool kRecords>
__device__ __forceinline__ int take_units(const Receipt& r, int source, int token, int unit,
                                          const std::int32_t* bases, Polls& polls,
                                          Recorder<kRecords>& recorder, int lane) {
  const DispatchArgs& a = r.a;
  const Geometry& g = r.g;
  if (is_absent(r, source)) return 0;
  std::byte* const from = in_at(g, source, 0);
  const std::byte* const header_at =
      from + g.layout.route(r.bank, token, lane < g.top_k ? lane : 0);
  const TokenBit comes(token);
  const std::byte* const cell_at = from + g.layout.cell(protocol::CellKind::dispatch, r.bank) +
                                   comes.packet * window::kPacketBytes;
  Piece<Encoder, kSpan> piece(a, from + g.layout.dispatch_row(r.bank, token), unit, lane);
  const int slots = g.layout.shape().tokens;
  Numbers numbers(r, source);
  uint4 header;
#pragma unroll 1
  for (;;) {
    // Everything is asked for at once, whether or not there is such a record.
    header = load_packet(header_at);  // Pairs with send_route() of the source.
    const uint4 cell = load_packet(cell_at);
    piece.load(a);
    numbers.look(r, lane);
    if (numbers.here() && __all_sync(~0U, header.x == r.tag)) break;
    if (mutant(KernelMutant::stale_header_taken) && __all_sync(~0U, header.x != window::kPoison)) {
      break;
    }
    if (__all_sync(~0U, cell.x == r.tag && !comes.in(cell))) {
      return comes.first ? static_cast<int>(cell.y >> cell_word::kTokensShift & cell_word::kNumber)
                         : slots;
    }
    if (polls.weary()) return kSlowly;
  }
  // Another call's: emptied later.
  if (__any_sync(~0U, header.w != r.signature)) return slots;
  recorder.mark(Phase::wait);
  int record = 0;
  if (r.layout == Layout::rank_major) {
    record = record_index(&a, r.tag, r.signature, r.suspects, r.bank, source, token);
    if (record < 0) return kSlowly;
  }
  const int row = row_of_route(r, source, header, record, bases, numbers, polls, lane);
  recorder.mark(Phase::count);
  // Pairs with Unit::send() of the source.
#pragma unroll 1
  while (!__all_sync(~0U, piece.here()) && !polls.weary()) piece.load(a);
  if (polls.was_weary()) return kSlowly;
  recorder.mark(Phase::wait);
  piece.store(r, row, lane);
  piece.clear(a);
  recorder.mark(Phase::place);
  return header_word::tokens(header.z);
}

/// The same by a warp that is weary. bases: or null.
template <int kSpan, typename Encoder>
__device__ __forceinline__ int take_slowly(Late late, int source, int token, int unit,
                                           const std::int32_t* bases) {
  const Receipt r = receipt_of(late);
  const DispatchArgs& a = r.a;
  const Geometry& g = r.g;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int slots = g.layout.shape().tokens;
  note_weary(r);
  if (is_absent(r, source)) return 0;
  std::byte* const from = in_at(g, source, 0);
  const std::byte* const header_at =
      from + g.layout.route(r.bank, token, lane < g.top_k ? lane : 0);
  const TokenBit comes(token);
  const std::byte* const first_at = from + g.layout.cell(protocol::CellKind::dispatch, r.bank);
  const std::byte* const cell_at = first_at + comes.packet * window::kPacketBytes;
  Piece<Encoder, kSpan> piece(a, from + g.layout.dispatch_row(r.bank, token), unit, lane);
  unsigned polls = 0;
  uint4 header;
#pragma unroll 1
  for (;; wait_slowly(r, source, polls)) {
    header = load_packet(header_at);  // Pairs with send_route() of the source.
    const uint4 cell = load_packet(cell_at);
    const uint4 first = load_packet(first_at);
    // What some lane sees, in one vote.
    constexpr std::uint32_t kClosing = 1;
    constexpr std::uint32_t kNoHeader = 2;
    constexpr std::uint32_t kMayCome = 4;
    constexpr std::uint32_t kNoCell = 8;
    constexpr std::uint32_t kOtherCall = 16;  // A cached dispatch of the source has no headers.
    const std::uint32_t seen = __reduce_or_sync(
        ~0U, (is_closing(r, source) ? kClosing : 0) | (header.x != r.tag ? kNoHeader : 0) |
                 (cell.x != r.tag || comes.in(cell) ? kMayCome : 0) |
                 (first.x != r.tag ? kNoCell : (first.z != r.signature ? kOtherCall : 0)));
    if ((seen & kClosing) != 0) return slots;
    if ((seen & kNoHeader) == 0) break;
    if ((seen & kMayCome) == 0) {
      return (seen & kNoCell) == 0
                 ? static_cast<int>(first.y >> cell_word::kTokensShift & cell_word::kNumber)
                 : slots;
    }
    if ((seen & kOtherCall) != 0) return slots;
  }
  if (__any_sync(~0U, header.w != r.signature)) return slots;
  int record = 0;
  if (r.layout == Layout::rank_major) record = record_index_slowly(late_of(r), source, token);
  const int row = row_slowly(late_of(r), source, header, record, bases);
#pragma unroll 1
  for (;; wait_slowly(r, source, polls)) {
    piece.load(a);  // Pairs with Unit::send() of the source.
    const std::uint32_t seen =
        __reduce_or_sync(~0U, (is_closing(r, source) ? 1U : 0U) | (piece.here() ? 0U : 2U));
    if ((seen & 1U) != 0) return slots;
    if (seen == 0) break;
  }
  piece.store(r, row, lane);
  piece.clear(a);
  return header_word::tokens(header.z);
}

/// Takes a unit of a record that the handle knows. Of a source that sends nothing, because it refused,
/// made another call, or is given up, rows become zero.
template <typename Encoder>
__device__ __forceinline__ void take_cached(const Receipt& r, int record, int unit, Polls& polls,
                                            int lane) {
  const DispatchArgs& a = r.a;
  const Geometry& g = r.g;
  const int source = r.handle.record_rank()[record];
  if (source < 0) return;
  const int token = r.handle.record_token()[record];
  const int row =
      lane < g.top_k ? r.handle.route_rows()[record * g.top_k + lane] : Handle::kRowAbsent;
  const std::byte* const cell_at =
      in_at(g, source, g.layout.cell(protocol::CellKind::dispatch, r.bank));
  Piece<Encoder, 1> piece(a, in_at(g, source, g.layout.dispatch_row(r.bank, token)), unit, lane);
  bool lost = is_absent(r, source);
  unsigned slow_polls = 0;
#pragma unroll 1
  while (!lost) {
    // Only the cell says whose the record is.
    const uint4 packet = load_packet(cell_at);  // Pairs with send_cell() of the source.
    piece.load(a);
    if (polls.was_weary()) {
      note_weary(r);
      if (__any_sync(~0U, is_closing(r, source))) return;
    }
    PeerCell cell;
    cell.read(packet, r.signature);
    const bool known = __all_sync(~0U, packet.x == r.tag);
    lost = known && (cell.refused || cell.mismatched);
    if (lost || (known && __all_sync(~0U, piece.here()))) break;
    if (polls.was_weary()) {
      wait_slowly(r, source, slow_polls);
    } else {
      (void)polls.weary();
    }
  }
  if (lost) piece.zero();
  piece.store(r, row, lane);
  if (!lost) piece.clear(a);
}

}  // namespace sluice::engine::cuda
