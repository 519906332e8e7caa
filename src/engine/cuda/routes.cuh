// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/packets.cuh"

/// This rank's routes in shared memory, and the numbers that follow from them. Every block works
/// them out by itself: that is cheaper than to ask another.
namespace sluice::engine::cuda {

inline constexpr int kTokenWords = kTokensMax / 32;

/// Mark of a token's further route to an expert that a lower route of it leads to.
inline constexpr int kDuplicateBit = 0x4000;
/// Ids that stand for no expert.
inline constexpr int kNoRoute = -1;
inline constexpr int kBadRoute = -2;

__device__ __forceinline__ int expert_of(int id) {
  return id < 0 ? -1 : id & (kDuplicateBit - 1);
}

/// log2 of the places that one token's routes take in shared memory: a power of two, so that no
/// token straddles two warps.
__host__ __device__ constexpr int route_shift(int top_k) {
  int shift = 0;
  while ((1 << shift) < top_k) ++shift;
  return shift;
}

/// Bytes of routes in shared memory.
__host__ __device__ constexpr int route_bytes(int tokens, int shift) {
  return (((tokens << shift) + tokens) * 2 + 15) / 16 * 16;
}

struct Routes {
  std::int16_t* ids;       // [T][2^shift]: an expert, with kDuplicateBit or not, or below zero
  std::uint16_t* masks;    // [T]: ranks that the token goes to
  std::uint32_t* reached;  // [R][kTokenWords]: bit t: token t goes to the rank
  int tokens;
  int top_k;
  int shift;

  /// Lane r: the number of tokens before `token` that go to rank r: the slot of its record there.
  __device__ __forceinline__ int slot(int token, int ranks, int lane) const {
    if (lane >= ranks) return 0;
    const std::uint32_t* words = reached + lane * kTokenWords;
    int count = __popc(words[token / 32] & ((1U << (token % 32)) - 1U));
#pragma unroll 1
    for (int word = 0; word < token / 32; ++word) count += __popc(words[word]);
    return count;
  }
  __device__ __forceinline__ int records(int rank) const {
    int count = 0;
#pragma unroll 1
    for (int word = 0; word < (tokens + 31) / 32; ++word) {
      count += __popc(reached[rank * kTokenWords + word]);
    }
    return count;
  }
};

/// Reads routes: thread i takes places i, i + kBlockThreads... of Routes::ids.
template <bool kCommon>
class RouteReader {
 public:
  /// Asks for this thread's first routes.
  __device__ __forceinline__ RouteReader(const DispatchArgs& a, int tokens, int shift)
      : a_(a), places_(tokens << shift), shift_(shift) {
    id_ = load(static_cast<int>(threadIdx.x));
    next_ = load(static_cast<int>(threadIdx.x) + kBlockThreads);
  }
  /// Writes ids and masks.
  __device__ __forceinline__ void store(const Routes& routes) {
    const int k = static_cast<int>(threadIdx.x) & ((1 << shift_) - 1);
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x); at - lane < places_; at += kBlockThreads) {
      bool duplicate = false;
#pragma unroll
      for (int step = 1; step < kAtOnce; ++step) {
        duplicate |= __shfl_up_sync(~0U, id_, step) == id_ && k >= step;
      }
#pragma unroll 1
      for (int step = kAtOnce; step < routes.top_k; ++step) {
        duplicate |= __shfl_up_sync(~0U, id_, step) == id_ && k >= step;
      }
      std::uint32_t mask = id_ < 0 ? 0U : 1U << owner_of(a_.geometry, id_).rank;
#pragma unroll 1
      for (int step = (1 << shift_) / 2; step != 0; step /= 2) {
        mask |= __shfl_xor_sync(~0U, mask, step);
      }
      if (at < places_) {
        routes.ids[at] =
            static_cast<std::int16_t>(id_ >= 0 && duplicate ? id_ | kDuplicateBit : id_);
        if (k == 0) routes.masks[at >> shift_] = static_cast<std::uint16_t>(mask);
      }
      id_ = next_;
      next_ = load(at + 2 * kBlockThreads);
    }
  }

 private:
  static constexpr int kAtOnce = 8;

  __device__ __forceinline__ int load(int at) const {
    const int token = at >> shift_;
    const int k = at & ((1 << shift_) - 1);
    if (at >= places_ || k >= a_.geometry.top_k) return kNoRoute;
    if (!kCommon && a_.mask != nullptr &&
        a_.mask[token * a_.mask_stride[0] + k * a_.mask_stride[1]] == 0) {
      return kNoRoute;
    }
    const std::int64_t offset = token * a_.ids_stride[0] + k * a_.ids_stride[1];
    const std::int64_t id = a_.ids64 ? static_cast<const std::int64_t*>(a_.ids)[offset]
                                     : static_cast<const std::int32_t*>(a_.ids)[offset];
    return id < -1 || id >= a_.geometry.experts ? kBadRoute : static_cast<int>(id);
  }

  const DispatchArgs& a_;
  int places_;
  int shift_;
  int id_;
  int next_;
};

/// Fills Routes::reached from the masks, by a whole block: by its last warps if there are few.
__device__ __forceinline__ void mark_reached(const Routes& routes, int ranks, int warp, int lane) {
#pragma unroll 1
  for (int word = kBlockWarps - 1 - warp; word * 32 < routes.tokens; word += kBlockWarps) {
    const int token = word * 32 + lane;
    const std::uint32_t mask = token < routes.tokens ? routes.masks[token] : 0;
    std::uint32_t own = 0;
#pragma unroll 1
    for (int rank = 0; rank < ranks; ++rank) {
      const std::uint32_t tokens = __ballot_sync(~0U, (mask >> rank) & 1U);
      if (lane == rank) own = tokens;
    }
    if (lane < ranks) routes.reached[lane * kTokenWords + word] = own;
  }
}

/// Adds to positions[k] the number of tokens before `token` with a route to the expert of its route
/// k, by a whole block.
__device__ __forceinline__ void count_positions(const Routes& routes, int token, int* positions,
                                                int warp, int lane) {
  const int before = token << routes.shift;
  if (warp * 32 >= before) return;
  int own = lane < routes.top_k ? expert_of(routes.ids[before + lane]) : -1;
  if (own < 0) own = kDuplicateBit - 1;  // Equal to no route.
  int count = 0;
#pragma unroll 1
  for (int at = warp * 32 + lane; at - lane < before; at += kBlockThreads) {
    const int other = at < before ? routes.ids[at] : kNoRoute;
    constexpr int kAtOnce = 8;
#pragma unroll 1
    for (int first = 0; first < routes.top_k; first += kAtOnce) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const std::uint32_t equal =
            __ballot_sync(~0U, other == __shfl_sync(~0U, own, (first + i) & 31));
        if (lane == first + i) count += __popc(equal);
      }
    }
  }
  if (count != 0) atomicAdd(&positions[lane], count);
}

}  // namespace sluice::engine::cuda
