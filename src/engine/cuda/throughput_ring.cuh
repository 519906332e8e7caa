// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/throughput.cuh"

/// Rows through shared memory, by the copy engine: a warp keeps more bytes on their way than its registers would hold, and
/// spends a few instructions on thousands of bytes. Waits are those of loads: memory answers, or the GPU reports a fault.
namespace sluice::engine::cuda {

/// What blocks have been given at launch: for slices of routes, then for the ring.
extern __shared__ __align__(128) std::byte throughput_memory[];

/// A ring of slots. kLoading pieces of rows are on their way here, and one may be on its way out.
template <int kSlotsEach, int kSlotSize>
struct RingOf {
  static constexpr int kSlots = kSlotsEach;
  static constexpr int kLoading = kSlots - 1;
  static constexpr int kSlotBytes = kSlotSize;
  /// Of all warps of a block.
  static constexpr int kBytes = kBlockWarps * kSlots * kSlotBytes;

  static_assert(kSlotBytes % 16 == 0);

  std::uint64_t arrivals[kBlockWarps][kSlots];

  /// Before anything is copied, by a whole warp: its barriers. What was written by other kernels, and what this block
  /// has had in that memory, comes before all copies.
  __device__ __forceinline__ SharedAt open(int warp, int lane) {
    const SharedAt own = shared_at(arrivals[warp]);
    if (lane < kSlots) prepare_arrival(barrier(own, lane));
    begin_copies();
    __syncwarp();
    return own;
  }
  static __device__ __forceinline__ SharedAt barrier(SharedAt own, int slot) {
    return own + slot * static_cast<int>(sizeof(std::uint64_t));
  }
};
/// For rows that are copied: a slot is half a row of 7168 elements of fp8; four are one of bf16.
using Ring = RingOf<4, 3584>;
/// For rows that a warp copies between others that it sums: one of bf16 at once.
using PairRing = RingOf<2, 7168>;
static_assert(PairRing::kBytes == Ring::kBytes);

/// Copies rows, in the order in which they are asked for. All by a whole warp.
class RowCopier {
 public:
  /// memory: shared, `bytes` of it for the block.
  __device__ __forceinline__ RowCopier(Ring& ring, std::byte* memory, int bytes, int warp, int lane)
      : arrivals_(ring.open(warp, lane)),
        slot_bytes_(bytes / (kBlockWarps * Ring::kSlots) / 16 * 16),
        slots_(shared_at(memory) + warp * Ring::kSlots * slot_bytes_),
        lane_(lane) {}

  /// Copies a row to every lane's `to` that is not null.
  __device__ __forceinline__ void copy(const std::byte* from, int bytes, std::byte* to) {
#pragma unroll 1
    for (int at = 0; at < bytes; at += slot_bytes_) {
      const int piece = min(slot_bytes_, bytes - at);
      pass_on({to == nullptr ? nullptr : to + at, piece}, step_ - Ring::kLoading);
      // The slot's last piece left in the group before that of the oldest one, which was just closed.
      if (!mutant(KernelMutant::slot_not_awaited)) {
        await_groups_read<Ring::kSlots - Ring::kLoading>();
      }
      __syncwarp();
      ask(from + at, piece);
    }
  }

  /// Waits until all that was copied is there, for this kernel's fences to publish.
  __device__ __forceinline__ void finish() {
#pragma unroll 1
    for (int i = 0; i < Ring::kLoading; ++i) {
      pass_on({nullptr, 0}, step_ - Ring::kLoading + static_cast<unsigned>(i));
    }
    if (!mutant(KernelMutant::ring_left_early)) await_groups();
    __syncwarp();
  }

  // Pieces that are read here, not copied: after finish(), and all that are asked for are taken before the next copy.

  /// Into a slot that nobody reads.
  __device__ __forceinline__ void ask(const std::byte* from, int bytes) {
    if (lane_ == 0) {
      const int slot = static_cast<int>(step_ % Ring::kSlots);
      bring(slots_ + slot * slot_bytes_, from, bytes, Ring::barrier(arrivals_, slot));
    }
    ++step_;
  }
  /// The oldest of `asked` that were not taken, which may be read until the next one is taken.
  __device__ __forceinline__ SharedAt take(unsigned asked) {
    __syncwarp();
    return arrived_piece(step_ - asked);
  }

 private:
  struct Piece {
    std::byte* to;
    int bytes;
  };

  /// Waits for the piece that was brought as this `number`.
  __device__ __forceinline__ SharedAt arrived_piece(unsigned number) const {
    const int slot = static_cast<int>(number % Ring::kSlots);
    while (!arrived(Ring::barrier(arrivals_, slot), number / Ring::kSlots % 2)) {
    }
    return slots_ + slot * slot_bytes_;
  }
  /// Sends the oldest piece, brought as this `number`, on its way out, and takes `next` for the youngest.
  __device__ __forceinline__ void pass_on(Piece next, unsigned number) {
    const Piece oldest = pieces_[0];
#pragma unroll
    for (int i = 0; i + 1 < Ring::kLoading; ++i) pieces_[i] = pieces_[i + 1];
    pieces_[Ring::kLoading - 1] = next;
    if (oldest.bytes != 0) {
      const SharedAt piece = arrived_piece(number);
      if (oldest.to != nullptr) take_out(oldest.to, piece, oldest.bytes);
    }
    close_group();
  }

  SharedAt arrivals_;
  int slot_bytes_;
  SharedAt slots_;
  int lane_;
  unsigned step_ = 0;
  Piece pieces_[Ring::kLoading] = {};
};

/// Brings pieces of rows here, to be read by the warp, in the order in which they are asked for. All by a whole warp.
class PieceFeed {
 public:
  /// memory: shared, PairRing::kBytes of it for the block.
  __device__ __forceinline__ PieceFeed(PairRing& ring, std::byte* memory, int warp, int lane)
      : arrivals_(ring.open(warp, lane)),
        slots_(shared_at(memory) + warp * PairRing::kSlots * PairRing::kSlotBytes),
        lane_(lane) {}

  /// Of a slot that nobody reads or takes out.
  __device__ __forceinline__ void ask(const std::byte* from, int bytes) {
    if (lane_ == 0) {
      bring(slots_ + asked_ * PairRing::kSlotBytes, from, bytes,
            PairRing::barrier(arrivals_, asked_));
    }
    if (++asked_ == PairRing::kSlots) asked_ = 0;
  }

  /// The oldest, which may be read until the next one is taken: its slot is asked for again after that.
  __device__ __forceinline__ SharedAt take() {
    __syncwarp();
    const int slot = taken_;
    while (!arrived(PairRing::barrier(arrivals_, slot), parity_)) {
    }
    if (++taken_ == PairRing::kSlots) {
      taken_ = 0;
      parity_ ^= 1U;
    }
    return slots_ + slot * PairRing::kSlotBytes;
  }

 private:
  SharedAt arrivals_;
  SharedAt slots_;
  int lane_;
  int asked_ = 0;  // Slot of the next.
  int taken_ = 0;
  unsigned parity_ = 0;  // Of the turn that is taken.
};

/// Brings the pieces of several rows to be summed: a piece of each, then the next piece of each. Every lane brings what it
/// reads itself, 16 bytes at a time: more instructions than a copy of the whole piece, but none to wait for other lanes, or
/// to have one of them ask. All by a whole warp, whose bytes of the ring nobody else uses meanwhile.
template <typename Piece>
class RowsFeed {
 public:
  /// Where this lane's bytes are of its warp's part of `memory`, which has Ring::kBytes for the block.
  static __device__ __forceinline__ SharedAt slots_of(std::byte* memory, int warp, int lane) {
    return shared_at(memory) + warp * (Ring::kBytes / kBlockWarps) + lane * 16;
  }

  /// Of every lane in `rows` the row at `own`, which has `hidden` elements.
  __device__ __forceinline__ RowsFeed(SharedAt slots, const std::byte* own, std::uint32_t rows,
                                      int hidden, int lane)
      : slots_(slots), own_(own), rows_(rows), left_(rows), hidden_(hidden), lane_(lane) {
#pragma unroll 1
    for (int i = 0; i < kLoading; ++i) ask();
  }

  /// The next piece of the next row. As many as there are.
  __device__ __forceinline__ Piece take() {
    if (!mutant(KernelMutant::pieces_not_awaited)) await_copies_but<kLoading - 1>();
    ask();
    Piece piece;
    piece.read(slots_ + taken_ * kPieceBytes);
    if (++taken_ == kSlots) taken_ = 0;
    return piece;
  }

 private:
  static constexpr int kPieceBytes = Piece::kVectors * 32 * 16;
  static constexpr int kSlots = Ring::kBytes / kBlockWarps / kPieceBytes;
  static constexpr int kLoading = kSlots - 1;  // The slot that was read last is not asked for.

  __device__ __forceinline__ void ask() {
    if (left_ != 0) {
      const std::byte* const row =
          pointer_of(const_cast<std::byte*>(own_), __ffs(static_cast<int>(left_)) - 1);
      Piece::bring(slots_ + asked_ * kPieceBytes, row + first_ * Piece::kElementBytes,
                   hidden_ - first_, lane_);
      if (++asked_ == kSlots) asked_ = 0;
      left_ &= left_ - 1;
      if (left_ == 0) {
        first_ += Piece::kElements;
        if (first_ < hidden_) left_ = rows_;
      }
    }
    close_copies();
  }

  SharedAt slots_;
  const std::byte* own_;
  std::uint32_t rows_;
  std::uint32_t left_;  // Of this piece.
  int hidden_;
  int lane_;
  int first_ = 0;  // Element of the piece that is asked for next.
  int asked_ = 0;
  int taken_ = 0;
};

}  // namespace sluice::engine::cuda
