// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/operation.cuh"

/// dispatch: which blocks and warps do what share of the work.
namespace sluice::engine::cuda {

/// Blocks that describe records, unless there are very many tokens.
inline constexpr int kDescribers = 9;
/// And unless this rank has few: others may have many.
inline constexpr int kDescribersLeast = 4;

/// Places of the routes' walk that one herald sends headers of. What a multiprocessor sends has its share
/// of the links once all send: headers, for which everybody waits, should not need more than that.
inline constexpr int kHeraldPlaces = 128;

/// Which of them a thread has: the herald's share is that of all but the first one, if there are
/// several, which has counts and cells to send.
struct HeaderShare {
  bool any;
  int first;
  int step;
  __device__ __forceinline__ HeaderShare(const Crew& crew, int warp, int lane) {
    const int index = crew.heralds == 1 ? crew.herald : crew.herald - 1;
    const int of = max(crew.heralds - 1, 1);
    any = crew.herald >= 0 && index >= 0;
    first = (warp * of + index) * 32 + lane;
    step = of * kBlockThreads;
  }
};

/// Of so many workers, one sends where there are many tokens, and the others take: while stores to peers wait
/// for the links, loads of the same multiprocessor wait behind them. Where two blocks run on
/// a multiprocessor, some take beside a sender.
inline constexpr int kSplit = 4;
__device__ __forceinline__ bool is_split(const Crew& crew, bool many) {
  return many && crew.workers >= kSplit;
}
/// So many workers send, the first ones.
__device__ __forceinline__ int senders_of(const Crew& crew, bool many) {
  return is_split(crew, many) ? crew.workers / kSplit : crew.workers;
}
/// Who takes.
struct Takers {
  bool takes;
  int first;  // task of this warp
  int warps;
  __device__ __forceinline__ Takers(const Crew& crew, bool many, int warp) {
    const bool split = is_split(crew, many);
    const int senders = senders_of(crew, many);
    const int blocks = split ? crew.workers - senders : crew.workers;
    takes = !split || crew.block >= senders;
    warps = blocks * kBlockWarps;
    // From the other end: warps with nothing to send are the first to take.
    first = split ? warp * blocks + crew.block - senders
                  : warps - 1 - (warp * crew.workers + crew.block);
  }
};

/// What comes, in tasks: kSpan units of every token of every source, whether or not there is such a record.
template <int kSpan>
struct Task {
  int source;
  int token;
  int unit;
  __device__ __forceinline__ Task(const DispatchArgs& a, int task) {
    const Geometry& g = a.geometry;
    const int item = quotient(task, g.ranks_divisor);
    token = quotient(item * kSpan, a.units_divisor);
    source = g.rank + task - item * g.ranks;
    if (source >= g.ranks) source -= g.ranks;
    unit = item * kSpan - token * static_cast<int>(a.units_divisor.divisor);
  }
};

}  // namespace sluice::engine::cuda
