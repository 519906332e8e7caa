// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/ferry_items.cuh"

/// A block that carries the items of a ring, in their order, while it has the ring: of a kernel of its own (ferry.cu), or of an
/// operation (carriers.cuh).
///
/// **One block at a time has a ring** (FerryState::rings), and nobody takes it away: who comes later waits until it is let go, or
/// goes without. The word that says that a ring is free says how far its items have been carried, and comes after what was counted
/// for the host. So every item is carried once, whoever carries it, and counts only grow.
///
/// **An operation that finds a ring with the ferry's own kernel leaves it the duty to stay**, and its carrier goes: so where
/// operations follow each other none has to wait until its carriers have seen that it is over. The carrier writes until when
/// (Worked::until), then counts the duty in the ring's word, by a compare-and-swap. The other reads the word, then until when, and
/// lets the ring go by a compare-and-swap from that very word, when all duties are done: so either it knows of a duty, or the
/// carrier's swap fails, which then finds the ring free and takes it. (A duty's swap may also succeed with the word of a later block
/// that stays: as good.) Between the other's load and its swap the count of duties does not come round: that takes 2^14 launches.
/// (model/ring.pml)
namespace sluice::engine::cuda {

/// Items that a block looks at while none comes: each look crosses PCIe, beside what it is for.
inline constexpr int kFerryLooked = 8;

/// What the warps of a block tell each other.
struct FerryShared {
  uint4 items[32];
  int there;  // How many of them; below zero: the block goes, if it may.
  // Once:
  bool taken;            // Whether the block has its ring,
  std::uint64_t number;  // and that of its first item that was not carried then.
  bool gone;             // Whether it has let its ring go.
};

/// Whether the word was `from`, and is `to` now.
__device__ __forceinline__ bool swap(std::uint64_t* word, std::uint64_t from, std::uint64_t to) {
  return atomicCAS(reinterpret_cast<unsigned long long*>(word),
                   static_cast<unsigned long long>(from),
                   static_cast<unsigned long long>(to)) == from;
}

/// Takes a ring as soon as nobody has it: its first item that has not been carried, to lane 0. Not if `stay` is over before, or its
/// operation has no need of it. By one warp.
template <typename Stay>
__device__ __forceinline__ bool take_ring(std::uint64_t* ring, Stay& stay, std::uint64_t& number,
                                          int lane) {
  stay.begin();
  for (bool looks = false;; looks = true) {
    const std::uint64_t word = stay.word();  // On its way beside the other.
    bool taken = false;
    bool left = false;
    if (lane == 0) {
      // The first time without a look: mostly it is free. (A look decides nothing: the atomic does.)
      std::uint64_t seen = looks ? load_relaxed(ring) : 0;
      if ((seen & RingWord::kTaken) == 0) {
        // Pairs with let_go(), by the fence.
        seen = atomicOr(reinterpret_cast<unsigned long long*>(ring),
                        static_cast<unsigned long long>(RingWord::kTaken));
      }
      taken = (seen & RingWord::kTaken) == 0;
      number = RingWord::items(seen);
      if constexpr (Stay::kStays) {
        // Nobody else changes it before they find kStays there.
        if (taken) store_relaxed(ring, seen | RingWord::kTaken | RingWord::kStays);
      } else {
        left = !taken && stay.leaves_duty(ring, seen);
      }
    }
    if (__any_sync(~0U, taken)) {
      fence_device();
      return true;
    }
    if (__any_sync(~0U, left) || stay.is_over(word, lane)) return false;
  }
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
///   kStays                whether it takes duties; if not:
///   leaves_duty(ring, word)   whether it was left to who has the ring, by its word, to stay
/// and by the thread that counts:
///   let_go(ring, number)  lets the ring go, of which so many items have been carried, or says that it has to stay
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
    if (count < 0) {
      if (threadIdx.x == Shape::kThreads - 1) {
        shared.gone = mutant(KernelMutant::ring_kept) || stay.let_go(&f.state->rings[ring], number);
      }
      __syncthreads();
      if (shared.gone) return;
      continue;
    }
    const FerrySlices<Shape> slices(f, shared.items[lane], count, lane);
    slices.carry(warp);
    const int others = __popc(slices.others());
    // Mostly there is but one or the other.
    const auto item_of = [&](int i) {
      return shared.items[others == count ? i : nth_of(slices.others(), i)];
    };
    const FerryTeam team(Shape::kWarps, others, warp);
    const int first = warp / team.size;
    uint4 held = {};
#pragma unroll 1
    for (int i = first; i < others; i += Shape::kWarps / team.size) {
      const uint4 item = item_of(i);
      held = carry_item<Shape>(f, item, team, lane);
      if (team.size > 1) break;
      __syncwarp();
      say_item(f, item, held, lane);
    }
    number += static_cast<std::uint64_t>(count);
    __syncthreads();
    if (team.size > 1) {
      if (team.leads() && first < others) say_item(f, item_of(first), held, lane);
      __syncthreads();  // What is counted has been said.
    }
    // What was copied was read: it may be overwritten. By a thread of the last warp, for which the others wait no sooner than when
    // the next items have been found. Pairs with the load in Ferry::count().
    if (threadIdx.x == Shape::kThreads - 1) {
      store_release(reinterpret_cast<std::uint64_t*>(f.counts + ring * int{window::kLineBytes}),
                    number);
    }
  }
}

}  // namespace sluice::engine::cuda
