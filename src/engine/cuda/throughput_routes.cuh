// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/dispatch_send.cuh"
#include "engine/cuda/throughput.cuh"

/// Throughput mode, dispatch: the numbers that follow from this rank's routes.
namespace sluice::engine::cuda {

/// Which of a few tokens go to which expert, and to which rank: in shared memory.
struct Slice {
  /// Shared memory that slices make do with, unless there are very many experts.
  static constexpr int kBytes = 32 << 10;
  static constexpr int kWordsMax = 16;

  std::int32_t* before;    // [E + R]: of the tokens before
  std::uint32_t* experts;  // [E][words], bit t: token t has a route to the expert
  std::uint32_t* ranks;    // [R][words], right behind
  std::uint16_t* firsts;  // [E + R][words]: how many tokens of the slice are in a row before a word
  int rows;               // E + R
  int words;

  static_assert(32 * kWordsMax < 1 << 16);  // What `firsts` can say.
  static constexpr int kWordBytes = sizeof(std::uint32_t) + sizeof(std::uint16_t);
  static __host__ __device__ int words_for(int rows) {
    const int words = (kBytes / rows - 4) / kWordBytes;
    return words < 1 ? 1 : (words > kWordsMax ? kWordsMax : words);
  }
  static __host__ __device__ int bytes(int experts, int ranks) {
    const int rows = experts + ranks;
    return rows * (4 + words_for(rows) * kWordBytes);
  }
  /// Of `most` tokens, or fewer.
  __device__ __forceinline__ Slice(std::byte* memory, const Geometry& g, int most)
      : before(reinterpret_cast<std::int32_t*>(memory)),
        experts(reinterpret_cast<std::uint32_t*>(before + g.experts + g.ranks)),
        ranks(nullptr),
        firsts(nullptr),
        rows(g.experts + g.ranks),
        words(min(words_for(rows), max((most + 31) / 32, 1))) {
    ranks = experts + g.experts * words;
    firsts = reinterpret_cast<std::uint16_t*>(experts + rows * words);
  }
  __device__ __forceinline__ int tokens() const { return 32 * words; }

  /// What is in `row`, an expert or, behind those, a rank, of a word's tokens.
  __device__ __forceinline__ std::uint32_t word(int row, int number) const {
    return experts[row * words + number];
  }
  /// Tokens of the slice before `token` that are in a row.
  __device__ __forceinline__ int position(int row, int token) const {
    return firsts[row * words + token / 32] +
           __popc(word(row, token / 32) & ((1U << (token % 32)) - 1U));
  }
  /// All of them.
  __device__ __forceinline__ int count(int row) const {
    return firsts[row * words + words - 1] + __popc(word(row, words - 1));
  }
};

/// A route of this rank, as it was given, or as it is used.
struct GivenRoute {
  int id;  // below zero: none
  float weight;
};

/// Routes that a thread asks for before it looks at the first.
inline constexpr int kRoutesAtOnce = 6;

/// Calls work(token, k, route) for all routes of `count` tokens, which load(token, k) loads. `work` is also called, with no route,
/// where a warp has fewer than its neighbours. By a whole block.
template <typename Load, typename Work>
__device__ __forceinline__ void each_route(const Geometry& g, int count, const Load& load,
                                           const Work& work) {
  const int shift = route_shift(g.top_k);
  const int places = count << shift;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first - lane < places;
       first += kRoutesAtOnce * kBlockThreads) {
    GivenRoute routes[kRoutesAtOnce];
#pragma unroll
    for (int i = 0; i < kRoutesAtOnce; ++i) {
      const int at = first + i * kBlockThreads;
      const int k = at & ((1 << shift) - 1);
      routes[i] = {kNoRoute, 0.0F};
      if (at < places && k < g.top_k) routes[i] = load(at >> shift, k);
    }
    // Not unrolled: what comes before this kernel's first row would be several times as long, and is fetched for this once.
#pragma unroll 1
    for (int i = 0; i < kRoutesAtOnce; ++i) {
      const int at = first + i * kBlockThreads;
      if (at - lane >= places) break;
      const int k = at & ((1 << shift) - 1);
      work(at >> shift, at < places && k < g.top_k ? k : -1, routes[0]);
#pragma unroll
      for (int next = 1; next < kRoutesAtOnce; ++next) routes[next - 1] = routes[next];
    }
  }
}

/// Notes `count` tokens. keep(token, k, route): called for every route, and says its id as it is noted. By a whole block, which
/// sees all afterwards.
template <typename Load, typename Keep>
__device__ __forceinline__ void note_slice(const Geometry& g, const Slice& slice, int count,
                                           const Load& load, const Keep& keep) {
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < slice.rows * slice.words; at += kBlockThreads) {
    slice.experts[at] = 0;
  }
  __syncthreads();
  each_route(g, count, load, [&](int token, int k, const GivenRoute& route) {
    if (k < 0) return;
    const int id = keep(token, k, route);
    if (id < 0) return;
    const std::uint32_t bit = 1U << (token % 32);
    atomicOr(&slice.experts[id * slice.words + token / 32], bit);
    atomicOr(&slice.ranks[owner_of(g, id).rank * slice.words + token / 32], bit);
  });
  __syncthreads();
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x); row < slice.rows; row += kBlockThreads) {
    int count = 0;
#pragma unroll 4
    for (int word = 0; word < slice.words; ++word) {
      slice.firsts[row * slice.words + word] = static_cast<std::uint16_t>(count);
      count += __popc(slice.word(row, word));
    }
  }
  __syncthreads();
}

/// Adds the tokens of the slice to those before. By a whole block, which sees it afterwards.
__device__ __forceinline__ void pass_slice(const Slice& slice) {
  __syncthreads();
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x); row < slice.rows; row += kBlockThreads) {
    slice.before[row] += slice.count(row);
  }
  __syncthreads();
}

/// The words of a route's packet: { tag, weight, place, owner }.
namespace place_word {
inline constexpr std::uint32_t kHere = 1U << 31;       // The expert is the reader's.
inline constexpr std::uint32_t kDuplicate = 1U << 30;  // A further route to it, without a row.
inline constexpr std::uint32_t kNone = 1U << 29;       // No record of the token comes. In route 0.
inline constexpr std::uint32_t kPosition = kNone - 1U;
/// In `owner`: the local expert, then the number of the record among those of its source.
inline constexpr int kExpertBits = 12;
static_assert(kMaxExperts <= 1 << kExpertBits && kMaxTokens <= 1 << (32 - kExpertBits));
}  // namespace place_word

/// A route as it is used.
__device__ __forceinline__ GivenRoute kept_route(const Desk& desk, int at) {
  return {desk.ids[at], desk.weights[at]};
}

/// The headers of a slice's records: every route of a token to all ranks that the token goes to; the others are told that it
/// does not come. Every packet says by itself that it is there. By a whole block. Pairs with Puller::ask().
__device__ __forceinline__ void send_slice(const DispatchArgs& a, const Desk& desk,
                                           const Slice& slice, int first, int count,
                                           std::uint32_t tag, int bank, std::uint32_t skipped) {
  const Geometry& g = a.geometry;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool whole = a.halves.receive && a.handle != nullptr;
  std::int32_t* const numbers =
      whole ? HandleArrays{a.handle, &a.handle_layout}.record_numbers() : desk.record_numbers;
  const auto load = [&](int token, int k) {
    return kept_route(desk, (first + token) * g.top_k + k);
  };
  each_route(g, count, load, [&](int token, int k, const GivenRoute& route) {
    const int id = route.id;
    // All routes of a token are in one warp, which has no more than 32 tokens.
    const std::uint32_t same = __match_any_sync(~0U, id < 0 ? -1 - lane : id | (token & 31) << 16);
    if (k < 0) return;
    std::uint32_t place = 0;
    Owner owner{-1, 0};
    if (id >= 0) {
      owner = owner_of(g, id);
      place = place_word::kHere |
              static_cast<std::uint32_t>(slice.before[id] + slice.position(id, token));
      if (__ffs(static_cast<int>(same)) - 1 < lane) place |= place_word::kDuplicate;
    }
    const std::uint32_t slot = g.layout.route(bank, first + token, k);
    std::uint32_t targets = 0;
#pragma unroll 1
    for (int peer = 0; peer < g.ranks; ++peer) {
      const int row = g.experts + peer;
      const bool goes = ((slice.word(row, token / 32) >> (token % 32)) & 1U) != 0;
      if (goes) targets |= 1U << peer;
      if (((skipped >> peer) & 1U) != 0) continue;
      if (!goes) {
        if (k == 0) store_packet(out_at(g, peer, slot), make_uint4(tag, 0, place_word::kNone, 0));
        continue;
      }
      const bool here = owner.rank == peer;
      const int record = slice.before[row] + slice.position(row, token);
      if (k == 0) numbers[(first + token) * g.ranks + peer] = record;
      store_packet(out_at(g, peer, slot),
                   make_uint4(tag, here ? __float_as_uint(route.weight) : 0U, here ? place : 0U,
                              static_cast<std::uint32_t>(here ? owner.local : 0) |
                                  static_cast<std::uint32_t>(record) << place_word::kExpertBits));
    }
    if (k == 0 && desk.host_targets != nullptr) {
      store_relaxed(desk.host_targets + bank * g.layout.shape().tokens + first + token, targets);
    }
  });
}

}  // namespace sluice::engine::cuda
