// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/ferry.hpp"

/// What all that a ferry carries has in common.
namespace sluice::engine::cuda {

/// A block that carries: how many threads it has, and how many packets each of them has on the way at once (four registers each).
template <int kThreadsOfBlock, int kPacketsEach>
struct FerryShape {
  static constexpr int kThreads = kThreadsOfBlock;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kEach = kPacketsEach;
};

/// Where in the lane of its source at a rank an item goes.
__device__ __forceinline__ std::byte* lane_at(const FerryArgs& f, uint4 item, int rank) {
  return f.windows[rank] + f.layout.lane(static_cast<int>(item.w >> 4) & 15) + item.y;
}

/// The nth member of a set that has more.
__device__ __forceinline__ int nth_of(std::uint32_t set, int n) {
#pragma unroll 1
  for (; n > 0; --n) set &= set - 1;
  return __ffs(static_cast<int>(set)) - 1;
}

/// The warps of a block that carry one item together: all of them, if there is no other. (One warp asks for a row in several
/// parts, one after the other.)
struct FerryTeam {
  int size;
  int member;

  __device__ __forceinline__ FerryTeam(int warps, int items, int warp)
      : size(items > 0 && items < warps ? warps / items : 1), member(warp % size) {}
  __device__ __forceinline__ bool leads() const { return member == 0; }
};

/// Of which token an item is, and whose.
struct FerryTokenOf {
  std::uint32_t what;
  int source;
  int bank;
  int token;

  __device__ __forceinline__ explicit FerryTokenOf(uint4 item)
      : what(item.w & 15U),
        source(static_cast<int>(item.w >> 4) & 15),
        bank(static_cast<int>(item.y >> FerryItem::kTokenBits)),
        token(static_cast<int>(item.y & ((1U << FerryItem::kTokenBits) - 1U))) {}
};

}  // namespace sluice::engine::cuda
