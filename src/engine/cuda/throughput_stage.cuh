// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/dispatch_send.cuh"
#include "engine/cuda/throughput_ring.cuh"

/// dispatch in throughput mode, send half: rows that do not lie where peers can read them are copied, or encoded, into this
/// rank's stage; behind each, a word in every reader's lane says that it is there.
namespace sluice::engine::cuda {

/// Which tokens warps stage one after the other. Every batch ends with a fence, for which stores are waited for, so a batch is
/// several tokens; but one at first, so that readers soon have something to read.
class Batches {
 public:
  __device__ __forceinline__ Batches(int tokens, int singles, int size)
      : tokens_(tokens), singles_(min(singles, tokens)), size_(size) {}
  __device__ __forceinline__ int count() const {
    return singles_ + (tokens_ - singles_ + size_ - 1) / size_;
  }
  __device__ __forceinline__ int first(int batch) const {
    return min(batch + max(batch - singles_, 0) * (size_ - 1), tokens_);
  }

 private:
  int tokens_;
  int singles_;
  int size_;  // of the others
};

/// What a warp does of it.
template <typename Encoder>
class Stager {
 public:
  /// tokens: of the call.
  __device__ __forceinline__ Stager(const DispatchArgs& a, const Desk& desk, const Block& block,
                                    int tokens, RowCopier& copier, const Seat& seat)
      : a_(a),
        desk_(desk),
        copier_(copier),
        suspects_(block.suspects),
        tag_(window::tag_of(block.sent.epoch + 1)),
        bank_(static_cast<int>(block.sent.bank)),
        lane_(seat.lane),
        queue_(&desk.dispatch_notes->next[DispatchNotes::kBatches], seat.lane),
        batches_(tokens, seat.warps,
                 max(min(kBatchBytes / max(a.row_bytes, 1), kBatchMost), kBatchLeast)) {}

  /// Whether there is something to stage.
  __device__ __forceinline__ bool open() {
    if (!stages(a_, desk_, Encoder::kGiven)) return false;
    queue_.open(batches_.count());
    next_ = queue_.take();
    return next_ >= 0;
  }

  /// Stages a few tokens. Whether there are more.
  __device__ __forceinline__ bool stage_next() {
    const int first = batches_.first(next_);
    const int end = batches_.first(next_ + 1);
    next_ = queue_.take();
    bool scales_left = desk_.own.stride != 0;
    if (desk_.own.stride == 0) {
      scales_left = stage_by_ring(first, end);
      if (!scales_left) {
#pragma unroll 1
        for (int token = first; token < end; ++token) stage_row(token);
      }
    }
    if constexpr (Encoder::kGiven) {
      if (scales_left && !mutant(KernelMutant::given_scales_left)) stage_given_scales(first, end);
    }
    tell(first, end);
    return next_ >= 0;
  }

  /// Before others use the copier: what was asked for ahead is waited for, and forgotten.
  __device__ __forceinline__ void put_aside() {
    if constexpr (Encoder::kQuantises) {
#pragma unroll 1
      for (; asked_ != 0; --asked_) (void)copier_.take(asked_);
    }
  }

 private:
  __device__ __forceinline__ std::byte* stage_of(int token) const {
    return desk_.windows[a_.geometry.rank] + a_.geometry.layout.staged_row(bank_, token);
  }

  /// That the rows are there. Pairs with Puller::ask().
  __device__ __forceinline__ void tell(int first, int end) {
    const Geometry& g = a_.geometry;
    if (asked_ == 0 && !mutant(KernelMutant::told_before_staged)) copier_.finish();
    __syncwarp();
    fence_system();
#pragma unroll 1
    for (int at = lane_; at < (end - first) * g.ranks; at += 32) {
      const int token = first + at / g.ranks;
      const int peer = at % g.ranks;
      if (((suspects_ >> peer) & 1U) != 0) continue;
      store_relaxed(
          reinterpret_cast<std::uint32_t*>(out_at(g, peer, g.layout.staged_word(bank_, token))),
          tag_);
    }
  }

  /// Encodes a row.
  __device__ __forceinline__ void stage_row(int token) {
    constexpr int kAtOnce = Encoder::kOutput == 1 ? 1 : 2;  // units
    const int units = static_cast<int>(a_.units_divisor.divisor);
    const std::byte* const row = row_of<true>(a_.x, token);
#pragma unroll 1
    for (int first = 0; first < units; first += kAtOnce) {
      typename Encoder::Source sources[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i < units) Encoder::load(a_, row, token, first + i, lane_, sources[i]);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= units) break;
        Unit<Encoder> encoded;
        encoded.encode(a_, sources[i], lane_);
        encoded.store(a_, stage_of(token), first + i, lane_);
      }
    }
  }

  /// The same by way of shared memory, if that can be done; of rows that are encoded already without their scales.
  __device__ __forceinline__ bool stage_by_ring(int first, int end) {
    if (!a_.aligned || desk_.ring_bytes == 0) return false;
    if constexpr (Encoder::kVerbatim) {
#pragma unroll 1
      for (int token = first; token < end; ++token) {
        copier_.copy(row_of<true>(a_.x, token), a_.row_bytes,
                     lane_ == 0 ? stage_of(token) : nullptr);
      }
      return true;
    }
    if constexpr (Encoder::kQuantises) {
      if (desk_.ring_bytes != Ring::kBytes) return false;
#pragma unroll 1
      for (int token = first; token < end; ++token) {
        const int after = next_ < 0 ? -1 : batches_.first(next_);
        quantise_row(token, token + 1 < end ? token + 1 : after);
      }
      return true;
    }
    return false;
  }

  // Rows that become fp8 are read in pieces, as many units at a time as a slot of the ring holds.

  static constexpr int input_bytes() {
    if constexpr (Encoder::kQuantises) return Encoder::kInputBytes;
    return 1;
  }
  static constexpr int kUnitBytes = window::kUnitElements * input_bytes();
  static constexpr int kUnits = Ring::kSlotBytes / kUnitBytes;
  static_assert(kUnits >= 1);
  __device__ __forceinline__ int pieces() const {
    return (static_cast<int>(a_.units_divisor.divisor) + kUnits - 1) / kUnits;
  }

  /// Asks for a piece of a row.
  __device__ __forceinline__ void ask(int token, int piece) {
    const int at = piece * kUnits * kUnitBytes;
    copier_.ask(row_of<true>(a_.x, token) + at,
                min(kUnits * kUnitBytes, a_.geometry.hidden * input_bytes() - at));
    ++asked_;
  }
  /// As many pieces as may be asked for, when so many of this row have been taken: of this one, then of the next.
  __device__ __forceinline__ void ask_ahead(int token, int next, int taken) {
#pragma unroll 1
    while (asked_ < Ring::kLoading) {
      const int piece = taken + static_cast<int>(asked_);
      if (piece < pieces()) {
        ask(token, piece);
      } else if (next >= 0 && piece < 2 * pieces()) {
        ask(next, piece - pieces());
      } else {
        break;
      }
    }
  }
  /// next: a row that is likely to be quantised after this one.
  __device__ __forceinline__ void quantise_row(int token, int next) {
    const int units = static_cast<int>(a_.units_divisor.divisor);
    if (asked_ == 0) copier_.finish();
    ask_ahead(token, next, 0);
#pragma unroll 1
    for (int piece = 0; piece < pieces(); ++piece) {
      const SharedAt shared = copier_.take(asked_);
      --asked_;
      ask_ahead(token, next, piece + 1);
      const int unit = piece * kUnits;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        if (unit + i >= units) break;
        typename Encoder::Source source;
        Encoder::read(shared + i * kUnitBytes,
                      a_.geometry.hidden - (unit + i) * window::kUnitElements, lane_, source);
        Unit<Encoder> encoded;
        encoded.encode(a_, source, lane_);
        encoded.store(a_, stage_of(token), unit + i, lane_);
      }
    }
  }

  /// Only the scales, of rows that are encoded already.
  __device__ __forceinline__ void stage_given_scales(int first, int end) {
    const int packets = static_cast<int>(a_.units_divisor.divisor) * a_.scale_packets;  // of a row
#pragma unroll 1
    for (int at = lane_; at < (end - first) * packets; at += 32) {
      const int row = at / packets;
      const int packet = at - row * packets;
      store_packet(
          stage_of(first + row) + a_.row_bytes + packet * 16,
          given_packet(a_, first + row, packet / a_.scale_packets, packet % a_.scale_packets));
    }
  }

  static constexpr int kBatchBytes = 28 << 10;  // of encoded rows
  static constexpr int kBatchLeast = 2;
  static constexpr int kBatchMost = 8;
  const DispatchArgs& a_;
  const Desk& desk_;
  RowCopier& copier_;
  std::uint32_t suspects_;
  std::uint32_t tag_;
  int bank_;
  int lane_;
  Queue queue_;
  Batches batches_;
  int next_ = -1;       // The batch to stage next.
  unsigned asked_ = 0;  // Pieces that were not taken.
};

}  // namespace sluice::engine::cuda
