// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/ferry_parts.cuh"
#include "engine/cuda/operation.cuh"

namespace sluice::engine::cuda {

/// The packets of all those items of a batch that are nothing but packets, in slices, which the block's warps take in turn. So each
/// warp has about as much to do as the others, however long the items are. By whole warps.
template <typename Shape>
class FerrySlices {
 public:
  /// `item`: the lane's, of `count`.
  __device__ __forceinline__ FerrySlices(const FerryArgs& f, uint4 item, int count, int lane)
      : f_(f), item_(item), lane_(lane) {
    const std::uint32_t what = item.w & 15U;
    const bool there = lane < count;
    const bool sliced = there && (what == FerryItem::kPackets || what == FerryItem::kRowPackets);
    others_ = __ballot_sync(~0U, there && !sliced);
    const int slices = sliced ? (packets(item) + kSlice - 1) / kSlice : 0;
    end_ = slices;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(~0U, end_, step);
      if (lane >= step) end_ += before;
    }
    begin_ = end_ - slices;
    all_ = __shfl_sync(~0U, end_, 31);
  }

  /// The items that are something else, as a set.
  __device__ __forceinline__ std::uint32_t others() const {
    return others_;
  }

  /// The warp's part.
  __device__ __forceinline__ void carry(int warp) const {
#pragma unroll 1
    for (int number = warp; number < all_; number += Shape::kWarps) carry_slice(number);
  }

 private:
  static constexpr int kEach = Shape::kEach;  // Packets of a lane.
  static constexpr int kSlice = kEach * 32;

  static __device__ __forceinline__ int packets(uint4 item) {
    return static_cast<int>(item.z & 0xffffU);
  }
  __device__ __forceinline__ void carry_slice(int number) const {
    const int which = __popc(__ballot_sync(~0U, end_ <= number));
    const int first = (number - __shfl_sync(~0U, begin_, which)) * kSlice + lane_;
    uint4 item;
    item.x = __shfl_sync(~0U, item_.x, which);
    item.y = __shfl_sync(~0U, item_.y, which);
    item.z = __shfl_sync(~0U, item_.z, which);
    item.w = __shfl_sync(~0U, item_.w, which);
    const int left = packets(item) - first;
    const std::byte* const from =
        ((item.w & 15U) == FerryItem::kPackets ? f_.host : f_.rows) +
        (std::size_t{item.x} + static_cast<std::size_t>(first)) * window::kPacketBytes;
    uint4 held[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i * 32 < left) held[i] = load_packet(from + i * 32 * int{window::kPacketBytes});
    }
#pragma unroll 1
    for (std::uint32_t ranks = item.z >> 16; ranks != 0; ranks &= ranks - 1) {
      std::byte* const to =
          lane_at(f_, item, __ffs(static_cast<int>(ranks)) - 1) + first * int{window::kPacketBytes};
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        // Pairs with the loads of the reader, as a peer's own store does.
        if (i * 32 < left) store_packet(to + i * 32 * int{window::kPacketBytes}, held[i]);
      }
    }
  }

  const FerryArgs& f_;
  const uint4 item_;
  const int lane_;
  std::uint32_t others_;
  int begin_;  // The first of the lane's item's slices among all, and the one behind its last.
  int end_;
  int all_;
};

}  // namespace sluice::engine::cuda
