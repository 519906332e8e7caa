// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/ferry_items.cuh"

/// A block that carries the items of a ring, in their order, while it has the ring: of a kernel of its own (ferry.cu), or of an
/// operation (carriers.cuh).
///
/// **One block at a time has a ring** (FerryState::rings), and nobody takes it away: who comes later waits until it is let go, or
/// goes without. The word that says that a ring is free says how far its items have been carried, and comes after what was counted
/// for the host. So every item is carried once, whoever carries it, and counts only grow.
namespace sluice::engine::cuda {

/// Items that a block looks at while none comes: each look crosses PCIe, beside what it is for.
inline constexpr int kFerryLooked = 8;

/// What the warps of a block tell each other.
struct FerryShared {
  uint4 items[32];
  int there;  // How many of them; below zero: the block ends.
  // Once:
  bool taken;            // Whether the block has its ring,
  std::uint64_t number;  // and that of its first item that was not carried then.
};

/// Takes a ring as soon as nobody has it: its first item that has not been carried, to lane 0. Whether it did before `stay` was
/// over. By one warp.
template <typename Stay>
__device__ __forceinline__ bool take_ring(std::uint64_t* ring, Stay& stay, std::uint64_t& number,
                                          int lane) {
  stay.begin();
  for (bool looks = false;; looks = true) {
    const std::uint64_t word = stay.word();  // On its way beside the other.
    bool taken = false;
    // The first time without a look: mostly it is free. (A look decides nothing: the atomic does.)
    if (lane == 0 && (!looks || (load_relaxed(ring) & 1) == 0)) {
      // Pairs with the store in let_go(), by the fence.
      const auto before =
          static_cast<std::uint64_t>(atomicOr(reinterpret_cast<unsigned long long*>(ring), 1ULL));
      taken = (before & 1) == 0;
      number = before / 2;
    }
    if (__any_sync(~0U, taken)) {
      fence_device();
      return true;
    }
    if (stay.is_over(word, lane)) return false;
  }
}

/// By the thread that has counted.
__device__ __forceinline__ void let_go(std::uint64_t* ring, std::uint64_t number) {
  store_release(ring, number * 2);  // Pairs with take_ring().
}

/// How many items there are from `number` on, of `looked` at first, of which lane i gets the i-th. Below zero: no more are waited
/// for. By one warp.
template <typename Stay>
__device__ __forceinline__ int await_items(const FerryArgs& f, int ring, std::uint64_t number,
                                           int looked, Stay& stay, uint4& item, int lane) {
  const FerryItem* const items = f.items + ring * kFerryRing;
  const std::uint64_t own = number + static_cast<std::uint64_t>(lane);
  if (!stay.begin()) return -1;
  for (;;) {
    // Before the item, which it would wait for: so both are on their way at once.
    const std::uint64_t word = stay.word();
    // Pairs with the store in Ferry::push(). (Nothing is kept in the L1, which loads that acquire empty.)
    if (lane < looked) item = load_packet_acquire(&items[own % kFerryRing]);
    const std::uint32_t missing =
        __ballot_sync(~0U, lane >= looked || item.w >> 8 != FerryItem::turn(own));
    const int count = missing == 0 ? 32 : __ffs(static_cast<int>(missing)) - 1;
    if (count > 0) {
      stay.found(word);
      return count;
    }
    looked = kFerryLooked;
    if (stay.is_over(word, lane)) return -1;
  }
}

/// Carries what comes through a ring until `stay` is over. By a whole block; `stay` is asked by its first warp:
///   begin()               a wait begins, unless the answer is false: whatever there is, is left to others
///   word()                something that says whether it is over, asked for beside what is waited for
///   is_over(word, lane)   whether it is, where that has not come
///   found(word)           that has come: the next wait begins when it has been carried
template <typename Shape, typename Stay>
__device__ __forceinline__ void carry_ring(const FerryArgs& f, int ring, Stay& stay,
                                           FerryShared& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (warp == 0) {
    std::uint64_t first = 0;
    const bool taken = take_ring(&f.state->rings[ring], stay, first, lane);
    if (lane == 0) {
      shared.taken = taken;
      shared.number = first;
    }
  }
  __syncthreads();
  if (!shared.taken) return;
  std::uint64_t number = shared.number;
  int looked = kFerryLooked;
  for (;;) {
    if (warp == 0) {
      uint4 item;
      const int count = await_items(f, ring, number, looked, stay, item, lane);
      looked = count < looked ? kFerryLooked : 32;  // Where all are there, there may be more.
      shared.items[lane] = item;
      if (lane == 0) shared.there = count;
    }
    __syncthreads();
    const int count = shared.there;
    if (count < 0) break;
    const FerryTeam team(Shape::kWarps, count, warp);
    const int first = warp / team.size;
    uint4 held = {};
#pragma unroll 1
    for (int i = first; i < count; i += Shape::kWarps / team.size) {
      held = carry_item<Shape>(f, shared.items[i], team, lane);
      if (team.size > 1) break;
      __syncwarp();
      say_item(f, shared.items[i], held, lane);
    }
    number += static_cast<std::uint64_t>(count);
    __syncthreads();
    if (team.size > 1) {
      if (team.leads() && first < count) say_item(f, shared.items[first], held, lane);
      __syncthreads();  // What is counted has been said.
    }
    // What was copied was read: it may be overwritten. By a thread of the last warp, for which the others wait no sooner than when
    // the next items have been found. Pairs with the load in Ferry::count().
    if (threadIdx.x == Shape::kThreads - 1) {
      store_release(reinterpret_cast<std::uint64_t*>(f.counts + ring * int{window::kLineBytes}),
                    number);
    }
  }
  if (threadIdx.x == Shape::kThreads - 1 && !mutant(KernelMutant::ring_kept)) {
    let_go(&f.state->rings[ring], number);
  }
}

}  // namespace sluice::engine::cuda
