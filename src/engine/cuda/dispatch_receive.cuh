// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/elements.cuh"
#include "engine/cuda/handle_arrays.cuh"
#include "engine/cuda/operation.cuh"
#include "sluice/handle.hpp"

/// dispatch, receive half: every warp takes a piece of a record out of its slot, when it has come,
/// and copies it to its row or rows, whose numbers follow from the counts of all sources.
namespace sluice::engine::cuda {

/// One operation's receive half as a warp sees it.
class DispatchReceiver {
 public:
  __device__ DispatchReceiver(const DispatchArgs& args, bool drop, std::uint32_t tag, int bank,
                              std::uint64_t signature, int lane)
      : a_(args),
        g_(args.geometry),
        patience_(args.geometry, args.timeout_ns),
        handle_{args.handle, &args.handle_layout},
        drop_(drop),
        tag_(tag),
        bank_(bank),
        cells_(args.geometry, protocol::CellKind::dispatch, bank, tag, signature, lane) {}

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

  /// Lane k: the row of route k of record `slot` of `source`, or what the handle has for none.
  /// Writes the record's entries of the handle if `describe`.
  __device__ int row_of_route(int source, int slot, uint4 header, const std::int32_t* bases,
                              bool describe, int lane) {
    const int local = lane < g_.top_k ? static_cast<int>(header.z & 0xFFFFU) - 1 : -1;
    const int token = static_cast<int>(header.z >> 16);
    int row = Handle::kRowAbsent;
    int record = 0;
    if (describe || a_.layout == Layout::rank_major) {
      record = cells_.records_before(source, lane) + slot;
    }
    const std::uint32_t lower = cells_.senders() & ((1U << source) - 1U);
    if (local >= 0) {
      if (a_.layout == Layout::rank_major) {
        row = a_.capacity == 0 || record < a_.capacity ? record : Handle::kRowOverflow;
      } else if (header.w == ~0U) {
        row = Handle::kRowDuplicate;
      } else {
        row = place(local, static_cast<int>(header.w) + count(lower, local), bases);
      }
    }
    if (describe && lane < g_.top_k) {
      const std::int64_t at = std::int64_t{record} * g_.top_k + lane;
      handle_.local_ids()[at] = local;
      handle_.local_weights()[at] = __uint_as_float(header.y);
      handle_.route_rows()[at] = row;
      if (lane == 0) {
        handle_.record_rank()[record] = source;
        handle_.record_token()[record] = token;
      }
    }
    return row;
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

  /// Takes one unit of record `slot` of `source`. Returns false if the source has no such record.
  template <typename Encoder>
  __device__ __forceinline__ bool take_unit(int source, int slot, int unit,
                                            const std::int32_t* bases, int lane) {
    constexpr int kVectors = Encoder::kVectors;
    std::byte* const from = in_at(g_, g_.layout.dispatch_row(source, bank_, slot));
    const int first_byte = (unit * kVectors * 32 + lane) * 16;  // Packets are 512 bytes apart.
    std::byte* const scales_from = from + a_.row_bytes + (unit * a_.scale_packets + lane) * 16;
    const bool has_scales = Encoder::kOutput == 1 && a_.rows && lane < a_.scale_packets;
    const std::byte* header_at =
        in_at(g_, g_.layout.route(source, bank_, slot, lane < g_.top_k ? lane : 0));
    uint4 data[kVectors];
    uint4 scale = make_uint4(0, 0, 0, 0);
    uint4 header = make_uint4(tag_, 0, 0, 0);
    bool counted = false;  // Whether the cells of the source and those below it are known.
#pragma unroll 1
    for (;;) {
      // Everything is asked for at once, whether or not there is such a record.
      if (!a_.cached && lane < g_.top_k) header = load_packet(header_at);
      if (a_.rows) {
#pragma unroll
        for (int j = 0; j < kVectors; ++j) {
          data[j] = make_uint4(0, 0, 0, 0);
          if (first_byte + j * 512 < a_.row_bytes)
            data[j] = load_packet(from + first_byte + j * 512);
        }
        if (has_scales) scale = load_packet(scales_from);
      }
      if (!counted) counted = cells_.look(source, lane, patience_);
      if (counted && slot >= cells_.records(source)) return false;
      // Pairs with send_header() and send_unit() of the source.
      bool here = counted && header.x == tag_ && scale.w != window::kPoison;
      if (a_.rows) {
#pragma unroll
        for (int j = 0; j < kVectors; ++j) here = here && data[j].w != window::kPoison;
      }
      if (__all_sync(~0U, here)) break;
      if (__any_sync(~0U, counted && patience_.spent(source))) return true;
    }

    if (a_.rows) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        if (first_byte + j * 512 < a_.row_bytes) clear_packet(from + first_byte + j * 512);
      }
      if (has_scales) clear_packet(scales_from);
    }
    if (drop_) return true;
    const int row = a_.cached ? cached_row(source, slot, lane)
                              : row_of_route(source, slot, header, bases, unit == 0, lane);
    if (!a_.rows) return true;
    std::uint32_t targets = __ballot_sync(~0U, row >= 0);
    if (a_.layout == Layout::rank_major) targets &= ~targets + 1;  // One row, however many routes.
#pragma unroll 1
    for (; targets != 0; targets &= targets - 1) {
      const int to = __shfl_sync(~0U, row, __ffs(static_cast<int>(targets)) - 1);
      std::byte* const out = row_at(a_.out, to) + first_byte;
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        if (first_byte + j * 512 < a_.row_bytes) {
          store_bytes<Encoder::kAligned, Encoder::kOutput>(out + j * 512, data[j]);
        }
      }
      if (has_scales) store_scales(row_at(a_.scales, to), unit, lane, scale);
    }
    return true;
  }

  __device__ int cached_row(int source, int slot, int lane) const {
    const std::int64_t record = handle_.source_offsets()[source] + slot;
    return lane < g_.top_k ? handle_.route_rows()[record * g_.top_k + lane] : Handle::kRowAbsent;
  }

 private:
  /// The scales in packet `lane` of a unit, into the row's scales.
  __device__ void store_scales(std::byte* out, int unit, int lane, uint4 packet) const {
    const std::uint32_t words[4] = {packet.x, packet.y, packet.z, packet.w};
    const int groups = window::kUnitElements / a_.codec.group;  // of a unit
    const int all = (g_.hidden + a_.codec.group - 1) / a_.codec.group;
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
