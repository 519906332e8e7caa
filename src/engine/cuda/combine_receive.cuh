// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/combine_parts.cuh"

/// combine, at home: adds the partial sums of a token, ranks ascending, as soon as they are there.
namespace sluice::engine::cuda {

/// What was answered of one token, and its routes: lane k has route k.
struct HomeToken {
  int expert = -1;
  int owner = -1;
  float weight = 0.0F;
  std::uint32_t expected = 0;
  std::uint32_t answered = 0;
};

__device__ __forceinline__ HomeToken read_token(const CombineArgs& a, const HandleArrays& handle,
                                                int token, int lane) {
  const Geometry& g = a.geometry;
  HomeToken home;
  if (lane < g.top_k) {
    home.expert = handle.topk_ids()[token * g.top_k + lane];
    home.weight = a.weights != nullptr
                      ? a.weights[token * a.weights_stride[0] + lane * a.weights_stride[1]]
                      : handle.topk_weights()[token * g.top_k + lane];
  }
  return home;
}

/// Ranks that the token went to.
__device__ __forceinline__ std::uint32_t find_ranks(const Geometry& g, HomeToken& home) {
  if (home.expert >= 0) home.owner = owner_of(g, home.expert).rank;
  home.expected = lanes_with(home.expert >= 0);
  return __reduce_or_sync(~0U, home.owner >= 0 ? 1U << home.owner : 0U);
}

/// What comes after the sum: scaling, further addends, rounding, the store.
template <typename Traits>
__device__ __forceinline__ void finish_token(const Combine& c, const HomeToken& home, int token,
                                             int step, float (&sum)[kLaneElements], int lane) {
  const CombineArgs& a = c.a;
  const std::uint32_t lost = home.expected & ~home.answered;
  float scale = 1.0F;
  if (lost != 0 && home.answered != 0 && a.renormalize) {
    const float whole = ordered_sum(home.weight, home.expected);
    const float surviving = ordered_sum(home.weight, home.answered);
    if (whole != surviving) scale = whole / surviving;
  }
  if (step == 0) {
    if (a.surviving_weight != nullptr) {
      const float surviving = ordered_sum(home.weight, home.answered);
      if (lane == 0) a.surviving_weight[token * a.surviving_stride] = surviving;
    }
    if (lost != 0 && lane == 0) {
      atomicAdd_system(&c.g.board->totals[1].lost_routes,
                       static_cast<unsigned long long>(__popc(lost)));
    }
  }
  const int element = step * kStepElements + lane * kLaneElements;
  if (element >= c.g.hidden) return;
  if (scale != 1.0F) {
#pragma unroll
    for (float& value : sum) value = value * scale;
  }
#pragma unroll 1
  for (int x = 0; x < a.extras; ++x) {
    float v[kLaneElements];
    load_floats<Traits::kAligned>(row_at(a.extra[x], token), element, a.extra_dtype[x], v);
#pragma unroll
    for (int e = 0; e < kLaneElements; ++e) sum[e] = sum[e] + v[e];
  }
  std::byte* const out = row_at(a.out, token);
  if (a.out_dtype != DType::f32) {
    store_bytes<Traits::kAligned, 2>(out + element * 2, halves_of_floats(sum, a.out_dtype));
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      store_bytes<Traits::kAligned, 4>(
          out + element * 4 + 16 * i,
          make_uint4(__float_as_uint(sum[4 * i]), __float_as_uint(sum[4 * i + 1]),
                     __float_as_uint(sum[4 * i + 2]), __float_as_uint(sum[4 * i + 3])));
    }
  }
}

/// A step of one token whose partial sums come from its ranks.
template <typename Traits>
__device__ __forceinline__ void sum_token(Combine& c, HomeToken home, int token, int step,
                                          int lane) {
  using Packets = typename Traits::Output;
  const Geometry& g = c.g;
  const int element = step * kStepElements + lane * kLaneElements;
  const bool inside = element < g.hidden;
  std::uint32_t ranks = find_ranks(g, home);
  float sum[kLaneElements] = {};
#pragma unroll 1
  while (ranks != 0) {
    constexpr int kRanks = 4;  // awaited at a time
    Packets packets[kRanks];
    std::uint32_t mask[kRanks];
    std::uint32_t left = ranks;
    std::uint32_t given_up = 0;
#pragma unroll 1
    for (;;) {
      std::uint32_t late = 0;  // Ranks whose answer has not come.
      bool here = true;
      left = ranks;
#pragma unroll
      for (int i = 0; i < kRanks; ++i) {
        mask[i] = 0;
        if (left == 0) continue;
        const int rank = __ffs(static_cast<int>(left)) - 1;
        left &= left - 1;
        // Pair with the stores of send_record() of the peer.
        const uint4 answer = load_packet(in_at(g, g.layout.answer(rank, c.bank, token)));
        if (inside) {
          packets[i].load(in_at(g, g.layout.combine_row(rank, c.bank, c.slot(token, 0))), element);
        }
        if (answer.x == c.tag) {
          mask[i] = answer.z == static_cast<std::uint32_t>(c.signature) ? answer.y : 0;
          if (mask[i] != 0 && inside && packets[i].empty()) here = false;
        } else {
          late |= 1U << rank;
        }
      }
      if (__all_sync(~0U, here && (late & ~given_up) == 0)) break;
      given_up |= c.give_up(ranks & ~left, late);
      if (c.lost) break;
    }
#pragma unroll
    for (int i = 0; i < kRanks; ++i) {
      if (ranks == left) break;
      const int rank = __ffs(static_cast<int>(ranks)) - 1;
      ranks &= ranks - 1;
      if (mask[i] == 0 || ((given_up >> rank) & 1U) != 0) continue;
      home.answered |= mask[i] & lanes_with(home.owner == rank);
      if (!inside) continue;
      packets[i].clear(in_at(g, g.layout.combine_row(rank, c.bank, c.slot(token, 0))), element);
      float v[kLaneElements];
      packets[i].decode(v, c.a.codec);
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) sum[e] = sum[e] + v[e];
    }
  }
  finish_token<Traits>(c, home, token, step, sum, lane);
}

/// Likewise with `single`: one chain over the routes.
template <typename Traits>
__device__ __forceinline__ void chain_token(Combine& c, HomeToken home, int token, int step,
                                            int lane) {
  const Geometry& g = c.g;
  const int element = step * kStepElements + lane * kLaneElements;
  const bool inside = element < g.hidden;
  (void)find_ranks(g, home);
  float sum[kLaneElements] = {};
  const float weight = merged_weight(home.expert, home.weight, home.expected, lane);
#pragma unroll 1
  for (std::uint32_t left = home.expected; left != 0; left &= left - 1) {
    const int k = __ffs(static_cast<int>(left)) - 1;
    const std::uint32_t same = routes_to_same(home.expert, home.expected, k);
    if (__ffs(static_cast<int>(same)) - 1 != k) continue;  // Took part at its lowest route.
    const int rank = __shfl_sync(~0U, home.owner, k);
    std::byte* const row = in_at(g, g.layout.combine_row(rank, c.bank, c.slot(token, k)));
    typename Traits::Output packets;
    bool answered = false;
#pragma unroll 1
    for (;;) {
      const uint4 answer = load_packet(in_at(g, g.layout.answer(rank, c.bank, token)));
      if (inside) packets.load(row, element);
      const bool come = answer.x == c.tag;
      answered = come && answer.z == static_cast<std::uint32_t>(c.signature) &&
                 ((answer.y >> k) & 1U) != 0;
      if (__all_sync(~0U, come && (!answered || !inside || !packets.empty()))) break;
      if (c.give_up(1U << rank, come ? 0 : 1U << rank) != 0 || c.lost) {
        answered = false;
        break;
      }
    }
    if (!__all_sync(~0U, answered)) continue;
    home.answered |= same;
    const float w = c.a.plain_sum ? 1.0F : __shfl_sync(~0U, weight, k);
    if (!inside) continue;
    packets.clear(row, element);
    float v[kLaneElements];
    packets.decode(v, c.a.codec);
#pragma unroll
    for (int e = 0; e < kLaneElements; ++e) sum[e] = __fmaf_rn(w, v[e], sum[e]);
  }
  finish_token<Traits>(c, home, token, step, sum, lane);
}

/// Brings the weights of rank_major rows home.
__device__ __forceinline__ void take_row_weights(Combine& c, int token, int lane) {
  HomeToken home = read_token(c.a, c.handle, token, lane);
  float value = 0.0F;
  std::uint32_t ranks = find_ranks(c.g, home);
#pragma unroll 1
  for (; ranks != 0; ranks &= ranks - 1) {
    const int rank = __ffs(static_cast<int>(ranks)) - 1;
    const int packet = lane < c.g.top_k ? lane / window::kPacketWeights : 0;
    const std::byte* at = in_at(c.g, c.g.layout.row_weight(rank, c.bank, token)) + packet * 16;
    bool given_up = false;
    uint4 v = load_packet(at);
#pragma unroll 1
    while (!given_up && !__all_sync(~0U, v.x == c.tag)) {
      given_up = c.give_up(1U << rank, 1U << rank) != 0;
      v = load_packet(at);
    }
    const int i = lane % window::kPacketWeights;
    if (!given_up && home.owner == rank) {
      value = __uint_as_float(i == 0 ? v.y : (i == 1 ? v.z : v.w));
    }
  }
  if (lane < c.g.top_k) {
    c.a.weights_home[token * c.a.weights_home_stride[0] + lane * c.a.weights_home_stride[1]] =
        value;
  }
}

/// What a kernel is made for.
template <int kInputSize, int kCodecSize, bool kSingleChain, bool kAlignedRows>
struct CombineTraits {
  static constexpr int kInput = kInputSize;  // bytes of an element of y
  static constexpr bool kSingle = kSingleChain;
  static constexpr bool kAligned = kAlignedRows;
  using Input = Elements<kInput, kAligned>;
  using Output = Packets<kCodecSize>;
};

}  // namespace sluice::engine::cuda
