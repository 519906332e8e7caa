// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/packets.cuh"

/// This rank's routes. Who sends a piece of a token needs that token's routes only; a herald
/// reads all of them, and works out the numbers that follow from them.
namespace sluice::engine::cuda {

inline constexpr int kTokenWords = kTokensMax / 32;

/// Ids that stand for no expert.
inline constexpr int kNoRoute = -1;
inline constexpr int kBadRoute = -2;

/// Where the id of route k of a token is.
__device__ __forceinline__ const void* id_at(const DispatchArgs& a, int token, int k) {
  const std::int64_t offset = token * a.ids_stride[0] + k * a.ids_stride[1];
  return static_cast<const std::byte*>(a.ids) + offset * (a.ids64 ? 8 : 4);
}

/// The id of route k of a token, checked.
template <bool kCommon>
__device__ __forceinline__ int load_route(const DispatchArgs& a, int token, int k) {
  if (k >= a.geometry.top_k) return kNoRoute;
  if (!kCommon && a.mask != nullptr &&
      a.mask[token * a.mask_stride[0] + k * a.mask_stride[1]] == 0) {
    return kNoRoute;
  }
  const void* const at = id_at(a, token, k);
  const std::int64_t id =
      a.ids64 ? *static_cast<const std::int64_t*>(at) : *static_cast<const std::int32_t*>(at);
  return id < -1 || id >= a.geometry.experts ? kBadRoute : static_cast<int>(id);
}

/// The ranks that a token goes to: lane k has the id of route k.
__device__ __forceinline__ std::uint32_t ranks_of(const Geometry& g, int id) {
  return __reduce_or_sync(~0U, id < 0 ? 0U : 1U << owner_of(g, id).rank);
}

/// To whom the row of a token goes that `ranks` are to get: one of every other node passes it on there.
__device__ __forceinline__ std::uint32_t row_ranks(const Geometry& g, std::uint32_t ranks) {
  if (g.published == nullptr) return ranks;
  std::uint32_t to = ranks & g.near;
#pragma unroll 1
  for (std::uint32_t left = ranks & ~g.near; left != 0; left &= left - 1) {
    to |= 1U << g.rail[__ffs(static_cast<int>(left)) - 1];
  }
  return to;
}

/// log2 of the places that one token's routes take in a walk over all routes: a power of two, so that
/// no token straddles two warps.
__host__ __device__ constexpr int route_shift(int top_k) {
  int shift = 0;
  while ((1 << shift) < top_k) ++shift;
  return shift;
}

/// Bytes of shared memory in which a herald may note which token goes to which expert.
inline constexpr int kNoteBytes = 32768;

/// What a herald has in shared memory of all routes.
struct RouteTable {
  std::uint32_t* notes;   // [experts][words], bit t: token t has a route to the expert
  std::int32_t* numbers;  // [experts]: where there are no notes, how many tokens go there
  std::uint16_t* masks;   // [tokens]: ranks that the token goes to
  std::int16_t* ids;      // [tokens << shift], where there are notes
  int tokens;
  int shift;
  int words;  // 0: no notes

  static __host__ __device__ int words_for(int experts, int tokens, int shift) {
    const int words = (tokens + 31) / 32;
    return experts * words * 4 + (tokens << shift) * 2 <= kNoteBytes ? words : 0;
  }
  static __host__ __device__ int bytes(int experts, int tokens, int shift) {
    const int words = words_for(experts, tokens, shift);
    const int ids = words > 0 ? tokens << shift : 0;
    return experts * (words > 0 ? words : 1) * 4 + (tokens + ids) * 2;
  }
  __device__ __forceinline__ RouteTable(std::byte* memory, int experts, int tokens_, int shift_)
      : tokens(tokens_), shift(shift_), words(words_for(experts, tokens_, shift_)) {
    notes = reinterpret_cast<std::uint32_t*>(memory);
    numbers = reinterpret_cast<std::int32_t*>(memory);
    masks = reinterpret_cast<std::uint16_t*>(memory + clear_words(experts) * 4);
    ids = reinterpret_cast<std::int16_t*>(masks + tokens);
  }
  __device__ __forceinline__ int clear_words(int experts) const {
    return experts * (words > 0 ? words : 1);
  }

  /// Tokens before `token` with a route to `expert`.
  __device__ __forceinline__ int before(int expert, int token) const {
    const std::uint32_t* const row = notes + expert * words;
    int count = __popc(row[token / 32] & ((1U << (token % 32)) - 1U));
#pragma unroll 1
    for (int word = 0; word < token / 32; ++word) count += __popc(row[word]);
    return count;
  }
  /// Tokens with a route to `expert`.
  __device__ __forceinline__ int all(int expert) const {
    if (words == 0) return numbers[expert];
    int count = 0;
#pragma unroll 1
    for (int word = 0; word < words; ++word) count += __popc(notes[expert * words + word]);
    return count;
  }
};

/// Whether lane k's route leads to the expert of a lower route of the token. By one warp.
__device__ __forceinline__ bool is_duplicate(int id, int lane) {
  const std::uint32_t same = __match_any_sync(~0U, id);
  return id >= 0 && __ffs(static_cast<int>(same)) - 1 < lane;
}

/// Notes all routes of the table, and whether a token has several to one expert (where there are notes),
/// by a whole block. kAtOnce: places whose loads a thread does not wait for one by one.
template <bool kCommon, int kAtOnce>
__device__ __forceinline__ void note_routes(const DispatchArgs& a, const RouteTable& table,
                                            bool* repeats) {
  const int shift = table.shift;
  const int places = table.tokens << shift;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first - lane < places;
       first += kAtOnce * kBlockThreads) {
    int ids[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kBlockThreads;
      ids[i] =
          at < places ? load_route<kCommon>(a, at >> shift, at & ((1 << shift) - 1)) : kNoRoute;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kBlockThreads;
      if (at - lane >= places) break;
      const int token = at >> shift;
      const int id = ids[i];
      if (table.words != 0) {
        const std::uint32_t bit = 1U << (token % 32);
        if (id >= 0 && (atomicOr(&table.notes[id * table.words + token / 32], bit) & bit) != 0) {
          *repeats = true;
        }
        if (at < places) table.ids[at] = static_cast<std::int16_t>(id);
      } else {
        // Not twice for one token.
        const std::uint32_t same = __match_any_sync(~0U, id < 0 ? -1 - lane : id | token << 16);
        if (id >= 0 && __ffs(static_cast<int>(same)) - 1 == lane) atomicAdd(&table.numbers[id], 1);
      }
      std::uint32_t mask = id < 0 ? 0U : 1U << owner_of(a.geometry, id).rank;
#pragma unroll 1
      for (int step = (1 << shift) / 2; step != 0; step /= 2) {
        mask |= __shfl_xor_sync(~0U, mask, step);
      }
      if (at < places && (at & ((1 << shift) - 1)) == 0) {
        table.masks[token] = static_cast<std::uint16_t>(mask);
      }
    }
  }
}

/// Lane k: the number of tokens before `token` with a route to the expert of its route k, where there
/// is no room for notes: over all routes once more. By one warp.
template <bool kCommon>
__device__ __noinline__ int count_before(const DispatchArgs* a, int token, int id) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int position = 0;
#pragma unroll 1
  for (int other = 0; other < token; ++other) {
    const int theirs = load_route<kCommon>(*a, other, lane);
#pragma unroll 1
    for (int k = 0; k < a->geometry.top_k; ++k) {
      const bool same = __any_sync(~0U, theirs == __shfl_sync(~0U, id, k) && theirs >= 0);
      if (lane == k && same) ++position;
    }
  }
  return position;
}

/// Which tokens go to `rank`: lane w has the bits of the w-th 32. By one warp.
__device__ __forceinline__ std::uint32_t tokens_to(const RouteTable& table, int rank, int lane) {
  std::uint32_t own = 0;
#pragma unroll 1
  for (int word = 0; word * 32 < table.tokens; ++word) {
    const int token = word * 32 + lane;
    const bool goes = token < table.tokens && ((table.masks[token] >> rank) & 1U) != 0;
    const std::uint32_t bits = __ballot_sync(~0U, goes);
    if (lane == word) own = bits;
  }
  return own;
}

}  // namespace sluice::engine::cuda
