// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/throughput.cuh"

/// Rows through shared memory, by the copy engine: a warp keeps more bytes on their way than its registers would hold, and
/// spends a few instructions on thousands of bytes. Waits are those of loads: memory answers, or the GPU reports a fault.
namespace sluice::engine::cuda {

/// What blocks have been given at launch: for slices of routes, then for the ring.
extern __shared__ __align__(128) std::byte throughput_memory[];

/// A ring of slots. kLoading pieces of rows are on their way here, and one may be on its way out.
struct Ring {
  static constexpr int kSlots = 4;
  static constexpr int kLoading = kSlots - 1;
  /// Half a row of 7168 elements of fp8; four are one of bf16.
  static constexpr int kSlotBytes = 3584;
  /// Of all warps of a block.
  static constexpr int kBytes = kBlockWarps * kSlots * kSlotBytes;

  static_assert(kSlotBytes % 16 == 0);

  std::uint64_t arrivals[kBlockWarps][kSlots];

  /// Before anything is copied, by a whole warp: its barriers. What was written by other kernels, and what this block
  /// has had in that memory, comes before all copies.
  __device__ __forceinline__ std::uint64_t* open(int warp, int lane) {
    if (lane < kSlots) prepare_arrival(&arrivals[warp][lane]);
    fence_copies();
    __syncwarp();
    return arrivals[warp];
  }
};

/// Copies rows, in the order in which they are asked for. All by a whole warp.
class RowCopier {
 public:
  /// memory: shared, `bytes` of it for the block.
  __device__ __forceinline__ RowCopier(Ring& ring, std::byte* memory, int bytes, int warp, int lane)
      : arrivals_(ring.open(warp, lane)),
        slot_bytes_(bytes / (kBlockWarps * Ring::kSlots) / 16 * 16),
        slots_(memory + warp * Ring::kSlots * slot_bytes_),
        lane_(lane) {}

  /// Copies a row to every lane's `to` that is not null.
  __device__ __forceinline__ void copy(const std::byte* from, int bytes, std::byte* to) {
#pragma unroll 1
    for (int at = 0; at < bytes; at += slot_bytes_) {
      const int piece = min(slot_bytes_, bytes - at);
      pass_on({to == nullptr ? nullptr : to + at, piece});
      // The slot's last piece left in the group before that of the oldest one, which was just closed.
      if (!mutant(KernelMutant::slot_not_awaited)) {
        await_groups_read<Ring::kSlots - Ring::kLoading>();
      }
      __syncwarp();
      if (lane_ == 0) {
        const unsigned slot = step_ % Ring::kSlots;
        bring(slots_ + slot * static_cast<unsigned>(slot_bytes_), from + at, piece,
              &arrivals_[slot]);
      }
      ++step_;
    }
  }

  /// Waits until all that was copied is there, for this kernel's fences to publish. The last that it does.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int i = 0; i < Ring::kLoading; ++i) {
      pass_on({nullptr, 0});
      ++step_;
    }
    if (!mutant(KernelMutant::ring_left_early)) await_groups();
    __syncwarp();
  }

 private:
  struct Piece {
    std::byte* to;
    int bytes;
  };

  /// Sends the oldest piece on its way out, and takes `next` for the youngest.
  __device__ __forceinline__ void pass_on(Piece next) {
    const Piece oldest = pieces_[0];
#pragma unroll
    for (int i = 0; i + 1 < Ring::kLoading; ++i) pieces_[i] = pieces_[i + 1];
    pieces_[Ring::kLoading - 1] = next;
    if (oldest.bytes != 0) {
      const unsigned number = step_ - Ring::kLoading;
      const unsigned slot = number % Ring::kSlots;
      while (!arrived(&arrivals_[slot], number / Ring::kSlots % 2)) {
      }
      if (oldest.to != nullptr) {
        take_out(oldest.to, slots_ + slot * static_cast<unsigned>(slot_bytes_), oldest.bytes);
      }
    }
    close_group();
  }

  std::uint64_t* arrivals_;
  int slot_bytes_;
  std::byte* slots_;
  int lane_;
  unsigned step_ = 0;
  Piece pieces_[Ring::kLoading] = {};
};

/// Brings pieces of rows here, to be read by the warp, in the order in which they are asked for. All by a whole warp.
class PieceFeed {
 public:
  /// memory: shared, Ring::kBytes of it for the block.
  __device__ __forceinline__ PieceFeed(Ring& ring, std::byte* memory, int warp, int lane)
      : arrivals_(ring.open(warp, lane)),
        slots_(memory + warp * Ring::kSlots * Ring::kSlotBytes),
        lane_(lane) {}

  /// At most Ring::kLoading pieces that are not taken yet.
  __device__ __forceinline__ void ask(const std::byte* from, int bytes) {
    const unsigned slot = asked_++ % Ring::kSlots;
    if (lane_ == 0) bring(slots_ + slot * Ring::kSlotBytes, from, bytes, &arrivals_[slot]);
  }

  /// The oldest, which may be read until the next one is taken: its slot is asked for again after that.
  __device__ __forceinline__ const std::byte* take() {
    __syncwarp();
    const unsigned slot = taken_ % Ring::kSlots;
    while (!arrived(&arrivals_[slot], taken_ / Ring::kSlots % 2)) {
    }
    ++taken_;
    return slots_ + slot * Ring::kSlotBytes;
  }

 private:
  std::uint64_t* arrivals_;
  std::byte* slots_;
  int lane_;
  unsigned asked_ = 0;
  unsigned taken_ = 0;
};

/// Brings the pieces of several rows: a piece of each, then the next piece of each. All by a whole warp.
class RowsFeed {
 public:
  /// Of every lane in `rows` the row at `own`, which has `bytes` bytes.
  __device__ __forceinline__ RowsFeed(PieceFeed& feed, const std::byte* own, std::uint32_t rows,
                                      int bytes, int piece_bytes)
      : feed_(feed), own_(own), rows_(rows), left_(rows), bytes_(bytes), piece_bytes_(piece_bytes) {
#pragma unroll 1
    for (int i = 0; i < Ring::kLoading; ++i) ask();
  }

  /// The next piece of the next row. As many as there are.
  __device__ __forceinline__ const std::byte* take() {
    const std::byte* const piece = feed_.take();
    ask();
    return piece;
  }

 private:
  __device__ __forceinline__ void ask() {
    if (left_ == 0 || at_ >= bytes_) return;
    const std::byte* const row =
        pointer_of(const_cast<std::byte*>(own_), __ffs(static_cast<int>(left_)) - 1);
    feed_.ask(row + at_, min(piece_bytes_, bytes_ - at_));
    left_ &= left_ - 1;
    if (left_ != 0) return;
    left_ = rows_;
    at_ += piece_bytes_;
  }

  PieceFeed& feed_;
  const std::byte* own_;
  std::uint32_t rows_;
  std::uint32_t left_;
  int bytes_;
  int piece_bytes_;
  int at_ = 0;
};

}  // namespace sluice::engine::cuda
