// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/dispatch_send.cuh"
#include "engine/cuda/handle_arrays.cuh"
#include "engine/cuda/operation.cuh"
#include "sluice/handle.hpp"

/// dispatch, receive half: every warp takes a piece of a record out of its slot, when it has come,
/// and copies it to its row or rows, whose numbers follow from the counts of all sources.
namespace sluice::engine::cuda {

/// One operation's receive half as a warp sees it.
template <typename Encoder>
class DispatchReceiver {
 public:
  __device__ __forceinline__ DispatchReceiver(const DispatchArgs& args, bool drop,
                                              std::uint32_t tag, int bank, int lane)
      : a_(args),
        g_(args.geometry),
        patience_(args.geometry, args.timeout_ns),
        handle_{args.handle, &args.handle_layout},
        drop_(drop),
        tag_(tag),
        bank_(bank),
        cells_(args.geometry, protocol::CellKind::dispatch, bank, tag, args.signature, lane) {}

  /// Rows of `expert` that come from the sources in `sources`.
  __device__ __forceinline__ int count(std::uint32_t sources, int expert) {
    int total = 0;
#pragma unroll 1
    while (sources != 0) {
      // Four at a time. Words that are not awaited count nothing.
      std::uint64_t word[4];
      std::uint32_t left = sources;
      bool here = true;
#pragma unroll
      for (std::uint64_t& w : word) {
        w = tag_;
        if (left != 0) {
          const int source = __ffs(static_cast<int>(left)) - 1;
          // Pairs with send_counts() of the source.
          w = load_relaxed(reinterpret_cast<const std::uint64_t*>(
              in_at(g_, g_.layout.count(source, bank_, expert))));
        }
        here = here && static_cast<std::uint32_t>(w) == tag_;
        left &= left - 1;
      }
      if (!here) {
        if (!patience_.spent(__ffs(static_cast<int>(sources)) - 1)) continue;
      }
#pragma unroll
      for (const std::uint64_t w : word) {
        if (static_cast<std::uint32_t>(w) == tag_) total += static_cast<int>(w >> 32);
      }
      sources = left;
    }
    return total;
  }

  /// Row number of the position-th row of an expert.
  __device__ int place(int expert, int position, const std::int32_t* bases) const {
    if (a_.layout == Layout::expert_slab) {
      return position < a_.capacity ? static_cast<int>(expert * a_.capacity) + position
                                    : Handle::kRowOverflow;
    }
    const int row = bases[expert] + position;
    return a_.capacity == 0 || row < a_.capacity ? row : Handle::kRowOverflow;
  }

  /// Takes kSpan units of record `slot` of `source`, from `unit` on. Returns false if the source has
  /// no such record.
  template <int kSpan>
  __device__ __forceinline__ bool take_units(int source, int slot, int unit,
                                             const std::int32_t* bases, int lane) {
    if (cells_.known(source) && slot >= cells_.records(source)) return false;
    std::byte* const from = in_at(g_, g_.layout.dispatch_row(source, bank_, slot));
    const int first_byte = (unit * kVectors * 32 + lane) * 16;  // Packets are 512 bytes apart.
    Piece<kSpan> piece{from + first_byte,
                       from + a_.row_bytes + (unit * a_.scale_packets + lane) * 16,
                       a_.scale_packets * 16, rows() ? (a_.row_bytes - first_byte + 511) / 512 : 0,
                       Encoder::kOutput == 1 && rows() && lane < a_.scale_packets};
    const std::byte* header_at =
        in_at(g_, g_.layout.route(source, bank_, slot, lane < g_.top_k ? lane : 0));
    uint4 header = make_uint4(tag_, 0, 0, 0);
    bool counted = false;  // Whether the cells of the source and those below it are known.
#pragma unroll 1
    for (;;) {
      // Everything is asked for at once, whether or not there is such a record.
      if (!cached() && lane < g_.top_k) header = load_packet(header_at);
      piece.load();
      if (!counted) counted = cells_.look(source, lane, patience_);
      if (counted && slot >= cells_.records(source)) return false;
      // Pairs with send_header() of the source.
      if (__all_sync(~0U, counted && header.x == tag_)) break;
      if (__any_sync(~0U, counted && patience_.spent(source))) return true;
    }
    int row = Handle::kRowAbsent;
    if (!drops()) {
      row = cached() ? cached_row(source, slot, lane)
                     : row_of_route(source, slot, header, bases, lane);
    }
    // Pairs with send_unit() of the source.
#pragma unroll 1
    while (!__all_sync(~0U, piece.here())) {
      if (__any_sync(~0U, patience_.spent(source))) return true;
      piece.load();
    }
    piece.clear();
    if (drops()) return true;
    if (rows()) store(piece, row, unit, first_byte, lane);
    if (unit == 0 && !cached()) describe(source, slot, header, row, lane);
    return true;
  }

 private:
  static constexpr bool kCommon = Encoder::kCommon;
  static constexpr int kVectors = Encoder::kVectors;

  /// What a lane takes of kSpan units: `packets` of data, and one of scales of each if there is one.
  template <int kSpan>
  struct Piece {
    static constexpr int kPackets = kSpan * kVectors;
    std::byte* data_at;
    std::byte* scale_at;
    int scale_stride;
    int packets;
    bool has_scales;
    uint4 data[kPackets] = {};
    uint4 scale[kSpan] = {};

    __device__ __forceinline__ void load() {
#pragma unroll
      for (int j = 0; j < kPackets; ++j) {
        if (j < packets) data[j] = load_packet(data_at + j * 512);
      }
#pragma unroll
      for (int s = 0; s < kSpan; ++s) {
        if (has_scales) scale[s] = load_packet(scale_at + s * scale_stride);
      }
    }
    __device__ __forceinline__ bool here() const {
      bool all = true;
#pragma unroll
      for (int j = 0; j < kPackets; ++j) all = all && data[j].w != window::kPoison;
#pragma unroll
      for (int s = 0; s < kSpan; ++s) all = all && scale[s].w != window::kPoison;
      return all;
    }
    __device__ __forceinline__ void clear() const {
#pragma unroll
      for (int j = 0; j < kPackets; ++j) {
        if (j < packets) clear_packet(data_at + j * 512);
      }
#pragma unroll
      for (int s = 0; s < kSpan; ++s) {
        if (has_scales) clear_packet(scale_at + s * scale_stride);
      }
    }
  };

  __device__ __forceinline__ bool rows() const {
    return kCommon || a_.rows;
  }
  __device__ __forceinline__ bool cached() const {
    return !kCommon && a_.cached;
  }
  __device__ __forceinline__ bool drops() const {
    return !kCommon && drop_;
  }

  __device__ int cached_row(int source, int slot, int lane) const {
    const std::int64_t record = handle_.source_offsets()[source] + slot;
    return lane < g_.top_k ? handle_.route_rows()[record * g_.top_k + lane] : Handle::kRowAbsent;
  }

  /// Lane k: local expert of route k, or -1.
  __device__ __forceinline__ int local_expert(uint4 header, int lane) const {
    return lane < g_.top_k ? static_cast<int>(header.z & 0xFFFFU) - 1 : -1;
  }

  /// Lane k: the row of route k of record `slot` of `source`, or what the handle has for none.
  __device__ __forceinline__ int row_of_route(int source, int slot, uint4 header,
                                              const std::int32_t* bases, int lane) {
    const int local = local_expert(header, lane);
    if (a_.layout == Layout::rank_major) {
      const int record = cells_.records_before(source, lane) + slot;
      if (local < 0) return Handle::kRowAbsent;
      return a_.capacity == 0 || record < a_.capacity ? record : Handle::kRowOverflow;
    }
    const std::uint32_t lower = cells_.senders() & ((1U << source) - 1U);
    if (local < 0) return Handle::kRowAbsent;
    if (header.w == ~0U) return Handle::kRowDuplicate;
    return place(local, static_cast<int>(header.w) + count(lower, local), bases);
  }

  /// Writes the record's entries of the handle.
  __device__ __forceinline__ void describe(int source, int slot, uint4 header, int row, int lane) {
    const int record = cells_.records_before(source, lane) + slot;
    if (lane >= g_.top_k) return;
    const int at = record * g_.top_k + lane;
    handle_.local_ids()[at] = local_expert(header, lane);
    handle_.local_weights()[at] = __uint_as_float(header.y);
    handle_.route_rows()[at] = row;
    if (lane == 0) {
      handle_.record_rank()[record] = source;
      handle_.record_token()[record] = static_cast<int>(header.z >> 16);
    }
  }

  /// Lane k has the row of route k.
  template <int kSpan>
  __device__ __forceinline__ void store(const Piece<kSpan>& piece, int row, int unit,
                                        int first_byte, int lane) {
    std::uint32_t targets = __ballot_sync(~0U, row >= 0);
    if (a_.layout == Layout::rank_major) targets &= ~targets + 1;  // One row, however many routes.
    std::byte* const row_start = row >= 0 ? row_at(a_.out, row) : nullptr;
    std::byte* scales_start = nullptr;
    if (Encoder::kOutput == 1 && row >= 0) scales_start = row_at(a_.scales, row);
#pragma unroll 1
    for (; targets != 0; targets &= targets - 1) {
      const int k = __ffs(static_cast<int>(targets)) - 1;
      std::byte* const out = pointer_of(row_start, k) + first_byte;
#pragma unroll
      for (int j = 0; j < Piece<kSpan>::kPackets; ++j) {
        if (j < piece.packets) {
          store_bytes<Encoder::kOutput>(out + j * 512, piece.data[j], kCommon || a_.aligned);
        }
      }
      if constexpr (Encoder::kOutput == 1) {
        std::byte* const scales = pointer_of(scales_start, k);
#pragma unroll
        for (int s = 0; s < kSpan; ++s) {
          if (piece.has_scales) store_scales(scales, unit + s, lane, piece.scale[s]);
        }
      }
    }
  }

  /// The scales in packet `lane` of a unit, into the row's scales.
  __device__ void store_scales(std::byte* out, int unit, int lane, uint4 packet) const {
    const std::uint32_t words[4] = {packet.x, packet.y, packet.z, packet.w};
    const int groups = groups_per_unit(a_);
    const int all = (g_.hidden + a_.codec.group - 1) >> (31 - __clz(a_.codec.group));
    const int first = unit * groups;
    if (a_.codec.scale_form != ScaleForm::ue8m0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int group = first + lane * 4 + i;
        if (lane * 4 + i < groups && group < all) {
          *reinterpret_cast<std::uint32_t*>(out + group * a_.scales.element_stride) = words[i];
        }
      }
      return;
    }
    if (groups == 2) {  // Half a word; the last one fills its word up.
      std::byte* const word = out + first / 4 * a_.scales.element_stride + first % 4;
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
        *reinterpret_cast<std::uint32_t*>(out + group / 4 * a_.scales.element_stride) =
            mask_scales(words[i], all - group);
      }
    }
  }
  /// The first `count` bytes of a word; the others are zero.
  static __device__ std::uint32_t mask_scales(std::uint32_t word, int count) {
    return count >= 4 ? word : word & ((1U << (8 * count)) - 1U);
  }

 public:
  const DispatchArgs& a_;
  const Geometry& g_;
  Patience patience_;
  HandleArrays handle_;
  bool drop_;
  std::uint32_t tag_;
  int bank_;
  Cells cells_;
};

}  // namespace sluice::engine::cuda
