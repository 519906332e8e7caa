// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/packets.cuh"

/// This rank's routes in shared memory, and the numbers that follow from them. Every block works
/// them out by itself: that is cheaper than to ask another.
namespace sluice::engine::cuda {

inline constexpr int kTokenWords = kTokensMax / 32;

/// Mark of a token's further route to an expert that a lower route of it leads to.
inline constexpr std::int16_t kDuplicateBit = 0x4000;

struct Routes {
  std::int16_t* ids;       // [T][K]: an expert, with kDuplicateBit or not, or -1
  std::int16_t* raw_ids;   // [T][K], before duplicates are marked
  std::uint32_t* reached;  // [R][kTokenWords]: bit t: token t goes to the rank
  std::uint32_t* bad_routes;
  int tokens;
  int top_k;

  __device__ bool goes_to(int token, int rank) const {
    return (reached[rank * kTokenWords + token / 32] >> (token % 32)) & 1U;
  }
  /// Number of tokens before `token` that go to the rank: the slot of its record there.
  __device__ int slot(int token, int rank) const {
    const std::uint32_t* words = reached + rank * kTokenWords;
    int count = __popc(words[token / 32] & ((1U << (token % 32)) - 1U));
#pragma unroll 1
    for (int word = 0; word < token / 32; ++word) count += __popc(words[word]);
    return count;
  }
  __device__ int records(int rank) const {
    int count = 0;
#pragma unroll 1
    for (int word = 0; word < (tokens + 31) / 32; ++word) {
      count += __popc(reached[rank * kTokenWords + word]);
    }
    return count;
  }
};

/// Bytes of one array of routes in shared memory.
__host__ __device__ constexpr int route_bytes(int tokens, int top_k) {
  return (tokens * top_k * 2 + 15) / 16 * 16;
}

/// Reads routes in two steps, with a barrier of the block between them and one after: a thread takes
/// every kBlockThreads-th route.
class RouteReader {
 public:
  /// Asks for this thread's first routes; `reached` is zeroed by then.
  __device__ void ask(const DispatchArgs& a, const Routes& routes) {
    const int total = routes.tokens * routes.top_k;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kBlockThreads;
      ids_[i] = at < total ? load_id(a, at, routes.top_k) : -1;
    }
  }
  __device__ void store_raw(const DispatchArgs& a, const Routes& routes) const {
    const int total = routes.tokens * routes.top_k;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      store_one(a, routes, static_cast<int>(threadIdx.x) + i * kBlockThreads, ids_[i]);
    }
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x) + kAhead * kBlockThreads; at < total;
         at += kBlockThreads) {
      store_one(a, routes, at, load_id(a, at, routes.top_k));
    }
  }
  static __device__ void mark_duplicates(const Geometry& g, const Routes& routes) {
    const int total = routes.tokens * routes.top_k;
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x); at < total; at += kBlockThreads) {
      std::int16_t id = routes.raw_ids[at];
      if (id >= 0) {
#pragma unroll 1
        for (int lower = quotient(at, g.top_k_divisor) * routes.top_k; lower < at; ++lower) {
          if (routes.raw_ids[lower] == routes.raw_ids[at]) id = routes.raw_ids[at] | kDuplicateBit;
        }
      }
      routes.ids[at] = id;
    }
  }

 private:
  static constexpr int kAhead = 2;

  static __device__ int load_id(const DispatchArgs& a, int at, int top_k) {
    const int token = quotient(at, a.geometry.top_k_divisor);
    const int k = at - token * top_k;
    if (a.mask != nullptr && a.mask[token * a.mask_stride[0] + k * a.mask_stride[1]] == 0) {
      return -1;
    }
    const std::int64_t offset = token * a.ids_stride[0] + k * a.ids_stride[1];
    const std::int64_t id = a.ids64 ? static_cast<const std::int64_t*>(a.ids)[offset]
                                    : static_cast<const std::int32_t*>(a.ids)[offset];
    return id < -1 || id >= a.geometry.experts ? -2 : static_cast<int>(id);
  }
  static __device__ void store_one(const DispatchArgs& a, const Routes& routes, int at, int id) {
    if (at >= routes.tokens * routes.top_k) return;
    if (id == -2) {
      atomicAdd(routes.bad_routes, 1U);
      id = -1;
    }
    routes.raw_ids[at] = static_cast<std::int16_t>(id);
    if (id < 0) return;
    const int token = quotient(at, a.geometry.top_k_divisor);
    atomicOr(&routes.reached[owner_of(a.geometry, id).rank * kTokenWords + token / 32],
             1U << (token % 32));
  }

  int ids_[kAhead];
};

__device__ __forceinline__ int expert_of(int id) {
  return id < 0 ? -1 : id & (kDuplicateBit - 1);
}

/// Lane k: the number of tokens before `token` with a route to the expert of route k.
__device__ __forceinline__ int position_of_route(const Routes& routes, int token, int lane) {
  const int before = token * routes.top_k;
  int position = 0;
  constexpr int kChunk = 8;
#pragma unroll 1
  for (int first = 0; first < routes.top_k; first += kChunk) {
    int own[kChunk];
    int count[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const int k = first + i;
      own[i] = k < routes.top_k ? expert_of(routes.ids[before + k]) : -1;
      if (own[i] < 0) own[i] = -2;  // Equal to no route.
      count[i] = 0;
    }
#pragma unroll 1
    for (int at = lane; at < before; at += 32) {
      const int other = routes.ids[at];
#pragma unroll
      for (int i = 0; i < kChunk; ++i) count[i] += other == own[i] ? 1 : 0;
    }
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const int total = __reduce_add_sync(~0U, count[i]);
      if (lane == first + i) position = total;
    }
  }
  return position;
}

}  // namespace sluice::engine::cuda
