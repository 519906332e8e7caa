// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/combine_parts.cuh"

/// combine, in which order warps send pieces, and how they find the next.
namespace sluice::engine::cuda {

/// Tokens of a rank up to which it sends its records as they lie, from that of the first rank on: links are
/// not what they wait for.
inline constexpr int kUnrotatedTokens = 16;

/// In which order a rank goes through its records, from a place that it knows before it may read the
/// handle: many are served from the next rank's on, so that the ranks do not all send to the same one.
struct Order {
  int first;
  int all;  // There are no more than so many.

  __device__ __forceinline__ explicit Order(const CombineArgs& a)
      : first(a.tokens > kUnrotatedTokens && a.geometry.rank + 1 < a.geometry.ranks
                  ? (a.geometry.rank + 1) * a.tokens
                  : 0),
        all(a.geometry.ranks * a.tokens) {}
  /// The handle's record that is the number-th.
  __device__ __forceinline__ int record(int number) const {
    const int index = number + first;
    return index >= all ? index - all : index;
  }
};

/// The pieces that a rank sends: those of its records in their order, each in steps. A turn of a block is one
/// of every so many.
struct Pieces {
  const CombineArgs& a;
  const Crew& crew;
  Order order;
  int records = 0;  // Those behind are none.
  int tasks = 0;    // pieces of all that there may be

  __device__ __forceinline__ Pieces(const CombineArgs& args, const Crew& own)
      : a(args), crew(own), order(args) {}

  __device__ __forceinline__ int record(int turn) const {
    return order.record(quotient(task(turn), a.steps_divisor));
  }
  __device__ __forceinline__ int step(int turn) const {
    const int at = task(turn);
    return at - quotient(at, a.steps_divisor) * static_cast<int>(a.steps_divisor.divisor);
  }
  __device__ __forceinline__ void count(int of_handle) {
    records = of_handle;
    tasks = of_handle == 0 ? 0 : order.all * static_cast<int>(a.steps_divisor.divisor);
  }
  __device__ __forceinline__ bool exists(int turn) const {
    return task(turn) < tasks && record(turn) < records;
  }
  /// The warp's next turn with a record: below zero where there is none.
  __device__ __forceinline__ int next(int turn) const {
#pragma unroll 1
    do {
      turn += kBlockWarps;
    } while (task(turn) < tasks && record(turn) >= records);
    return task(turn) < tasks ? turn : -1;
  }

 private:
  __device__ __forceinline__ int task(int turn) const {
    return turn * crew.workers + crew.block;
  }
};

/// The next of a block's turns, of which a warp takes one when it has time. By one warp.
__device__ __forceinline__ int next_turn(int* turns, int lane) {
  int turn = 0;
  if (lane == 0) turn = atomicAdd(turns, 1);
  return __shfl_sync(~0U, turn, 0);
}

}  // namespace sluice::engine::cuda
