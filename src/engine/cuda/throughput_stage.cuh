// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/dispatch_send.cuh"
#include "engine/cuda/throughput_ring.cuh"

/// dispatch in throughput mode, send half: rows that do not lie where peers can read them are copied, or encoded, into this
/// rank's stage; behind each, a word in every reader's lane says that it is there, and behind those of a part of the tokens
/// another that all of them are.
namespace sluice::engine::cuda {

/// Which tokens warps stage one after the other. Every batch ends with a fence, for which stores are waited for, so a batch is
/// several tokens; but one at first, so that readers soon have something to read.
class Batches {
 public:
  /// warps: of the launch.
  __device__ __forceinline__ Batches(const DispatchArgs& a, int tokens, int warps, bool quantised)
      : tokens_(tokens),
        singles_(min(warps, tokens)),
        size_(max(min((quantised ? kQuantised : kCopied) / max(a.row_bytes, 1), kMost), kLeast)) {}
  __device__ __forceinline__ int tokens() const { return tokens_; }
  __device__ __forceinline__ int count() const {
    return singles_ + (tokens_ - singles_ + size_ - 1) / size_;
  }
  __device__ __forceinline__ int first(int batch) const {
    return min(batch + max(batch - singles_, 0) * (size_ - 1), tokens_);
  }

 private:
  // Bytes of encoded rows. Quantising takes longer.
  static constexpr int kCopied = 56 << 10;
  static constexpr int kQuantised = 28 << 10;
  static constexpr int kLeast = 2;
  static constexpr int kMost = 8;
  int tokens_;
  int singles_;
  int size_;  // of the others
};

/// Parts of what a dispatch sends to other nodes, for count_sent().
__device__ __forceinline__ std::uint32_t parts_of(const DispatchArgs& a, const Desk& desk,
                                                  bool fresh, bool given, const Batches& batches) {
  const int described = fresh ? Shares(a.geometry, a.tokens).parts() : 1;
  return static_cast<std::uint32_t>(described + (stages(a, desk, given) ? batches.count() : 0));
}

/// What a warp does of it.
template <typename Encoder>
class Stager {
 public:
  /// parts: see parts_of().
  __device__ __forceinline__ Stager(const DispatchArgs& a, const Desk& desk, const Block& block,
                                    const Batches& batches, std::uint32_t parts, RowCopier& copier,
                                    const Seat& seat)
      : a_(a),
        desk_(desk),
        copier_(copier),
        suspects_(block.suspects),
        epoch_(block.sent.epoch + 1),
        sent_parts_(parts),
        parts_(batches.tokens()),
        bank_(static_cast<int>(block.sent.bank)),
        lane_(seat.lane),
        queue_(&desk.dispatch_notes->next[DispatchNotes::kBatches], seat.lane),
        batches_(batches) {}

  /// Whether there is something to stage. holds: this warp has its next batch at hand, and asks for its pieces ahead; so it
  /// stages until nothing is left before anybody else uses the copier.
  __device__ __forceinline__ bool open(bool holds) {
    if (!stages(a_, desk_, Encoder::kGiven)) return false;
    holds_ = holds;
    queue_.open(batches_.count());
    if (holds) queue_.ask_ahead();
    if (!holds) return true;
    next_ = queue_.take();
    return next_ >= 0;
  }

  /// Stages a few tokens. Whether there may be more.
  __device__ __forceinline__ bool stage_next() {
    const int batch = holds_ ? next_ : queue_.take_now();
    if (batch < 0) return false;
    const int first = batches_.first(batch);
    const int end = batches_.first(batch + 1);
    if (holds_) next_ = queue_.take();
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
    if (a_.cached && desk_.host_targets != nullptr) note_targets(first, end);
    tell(first, end);
    return !holds_ || next_ >= 0;
  }

 private:
  __device__ __forceinline__ std::byte* stage_of(int token) const {
    return a_.geometry.window + a_.geometry.layout.staged_row(bank_, token);
  }
  /// For other nodes. Null where there are none.
  __device__ __forceinline__ std::byte* far_stage_of(int token) const {
    return desk_.far_stages == nullptr
               ? nullptr
               : desk_.far_stages + a_.geometry.layout.staged_offset(bank_, token);
  }
  template <typename Encoded>
  __device__ __forceinline__ void store(const Encoded& encoded, int token, int unit) const {
    encoded.store(a_, stage_of(token), unit, lane_);
    if (desk_.far_stages != nullptr) encoded.store(a_, far_stage_of(token), unit, lane_);
  }

  /// That the rows are there and, of a part, by who stages its last one, that all are. Pairs with Puller::ask().
  __device__ __forceinline__ void tell(int first, int end) {
    const Geometry& g = a_.geometry;
    if (asked_ == 0 && !mutant(KernelMutant::told_before_staged)) copier_.finish();
    __syncwarp();
    fence_system();
    const int part = parts_.part_of(first) + lane_;
    bool whole = false;
    if (part <= parts_.part_of(end - 1)) {
      const int begin = parts_.first(part);
      const int rows = min(parts_.first(part + 1), end) - max(begin, first);
      const auto before = static_cast<int>(
          atomicAdd(&desk_.dispatch_notes->staged[part], static_cast<unsigned>(rows)));
      whole =
          before + rows == parts_.first(part + 1) - begin || mutant(KernelMutant::part_told_early);
    }
#pragma unroll 1
    for (int at = lane_; at < (end - first) * g.ranks; at += 32) {
      const int token = first + at / g.ranks;
      const int peer = at % g.ranks;
      if (((suspects_ >> peer) & 1U) != 0 || is_far(g, peer)) continue;
      store_relaxed(
          reinterpret_cast<std::uint32_t*>(out_at(g, peer, g.layout.staged_word(bank_, token))),
          window::tag_of(epoch_));
    }
    const std::uint32_t told = lanes_with(whole);
    if (told != 0) {
      fence_system();  // After what others have staged of it before they counted.
      __syncwarp();    // Any lane may have counted the last one, and any may say so.
      fence_system();
    }
#pragma unroll 1
    for (std::uint32_t left = told; left != 0; left &= left - 1) {
      const int at = parts_.part_of(first) + __ffs(static_cast<int>(left)) - 1;
      if (lane_ >= g.ranks || ((suspects_ >> lane_) & 1U) != 0 || is_far(g, lane_)) continue;
      store_relaxed(
          reinterpret_cast<std::uint32_t*>(out_at(g, lane_, g.layout.staged_part(bank_, at))),
          window::tag_of(epoch_));
    }
    __syncwarp();
    if (lane_ == 0) {
      count_sent(g, protocol::CellKind::dispatch, epoch_, &desk_.dispatch_notes->sent, 1,
                 sent_parts_);
    }
  }

  /// The ranks that tokens of a handle go to.
  __device__ __forceinline__ void note_targets(int first, int end) const {
    const Geometry& g = a_.geometry;
    const HandleArrays handle{a_.handle, &a_.handle_layout};
#pragma unroll 1
    for (int token = first; token < end; ++token) {
      const int id = lane_ < g.top_k ? handle.topk_ids()[token * g.top_k + lane_] : kNoRoute;
      const std::uint32_t targets = __reduce_or_sync(~0U, id < 0 ? 0U : 1U << owner_of(g, id).rank);
      if (lane_ == 0) {
        store_relaxed(desk_.host_targets + bank_ * g.layout.shape().tokens + token, targets);
      }
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
        store(encoded, token, first + i);
      }
    }
  }

  /// The same by way of shared memory, if that can be done; of rows that are encoded already without their scales.
  __device__ __forceinline__ bool stage_by_ring(int first, int end) {
    if (!a_.aligned || desk_.ring_bytes == 0) return false;
    if constexpr (Encoder::kVerbatim) {
#pragma unroll 1
      for (int token = first; token < end; ++token) {
        std::byte* to = nullptr;
        if (lane_ == 0) to = stage_of(token);
        if (lane_ == 1) to = far_stage_of(token);
        copier_.copy(row_of<true>(a_.x, token), a_.row_bytes, to);
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
        store(encoded, token, unit + i);
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
      const uint4 scales =
          given_packet(a_, first + row, packet / a_.scale_packets, packet % a_.scale_packets);
      const int at_row = a_.row_bytes + packet * 16;
      store_packet(stage_of(first + row) + at_row, scales);
      if (desk_.far_stages != nullptr) store_packet(far_stage_of(first + row) + at_row, scales);
    }
  }

  const DispatchArgs& a_;
  const Desk& desk_;
  RowCopier& copier_;
  std::uint32_t suspects_;
  std::uint64_t epoch_;
  std::uint32_t sent_parts_;
  window::StagedParts parts_;
  int bank_;
  int lane_;
  Queue queue_;
  Batches batches_;
  bool holds_ = false;
  int next_ = -1;       // The batch to stage next, of who holds one.
  unsigned asked_ = 0;  // Pieces that were not taken.
};

}  // namespace sluice::engine::cuda
