// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/combine_parts.cuh"
#include "engine/cuda/ledger.cuh"

/// combine, receive half: home adds the partial sums of a token, ranks ascending, as soon as they are
/// there.
namespace sluice::engine::cuda {

/// What the sum of a token is multiplied by of whose routes only some were answered.
__device__ __noinline__ float surviving_scale(float weight, std::uint32_t expected,
                                              std::uint32_t answered) {
  const float whole = ordered_sum(weight, expected);
  const float surviving = ordered_sum(weight, answered);
  return whole != surviving ? whole / surviving : 1.0F;
}

/// What comes after the sum: scaling, further addends, rounding, the store.
template <typename Traits>
__device__ __forceinline__ void finish_token(const Combine& c, const HomeToken& home, int token,
                                             int step, float (&sum)[Traits::kSpan][kLaneElements],
                                             int lane) {
  const CombineArgs& a = c.a;
  const bool aligned = Traits::kCommon || a.aligned;
  const std::uint32_t lost = home.expected & ~home.answered;
  float scale = 1.0F;
  if (lost != 0) {
    if (home.answered != 0 && a.renormalize && !mutant(KernelMutant::loss_not_scaled)) {
      scale = surviving_scale(read_weight(c, token, lane), home.expected, home.answered);
    }
    if (step == 0 && lane == 0 && !mutant(KernelMutant::loss_not_counted))
      report_lost(&a, c.tag, c.bank, __popc(lost));
  }
  if (!Traits::kCommon && step == 0 && a.surviving_weight != nullptr) {
    const float surviving = ordered_sum(read_weight(c, token, lane), home.answered);
    if (lane == 0) a.surviving_weight[token * a.surviving_stride] = surviving;
  }
  std::byte* const out = Traits::row(a.out, token, 0);
#pragma unroll
  for (int j = 0; j < Traits::kSpan; ++j) {
    const int element = step * Traits::kStep + j * kStepElements + lane * kLaneElements;
    if (element >= c.g.hidden) return;
    if (scale != 1.0F) {
#pragma unroll
      for (float& value : sum[j]) value = value * scale;
    }
    if constexpr (!Traits::kCommon) {
#pragma unroll 1
      for (int x = 0; x < a.extras; ++x) {
        float v[kLaneElements];
        load_floats(row_at(a.extra[x], token), element, a.extra_dtype[x], aligned, v);
#pragma unroll
        for (int e = 0; e < kLaneElements; ++e) sum[j][e] = sum[j][e] + v[e];
      }
    }
    if (Traits::out_dtype(a) != DType::f32) {
      store_bytes<2>(out + element * 2, halves_of_floats(sum[j], Traits::out_dtype(a)), aligned);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        store_bytes<4>(
            out + element * 4 + 16 * i,
            make_uint4(__float_as_uint(sum[j][4 * i]), __float_as_uint(sum[j][4 * i + 1]),
                       __float_as_uint(sum[j][4 * i + 2]), __float_as_uint(sum[j][4 * i + 3])),
            aligned);
      }
    }
  }
}

/// What is known of a piece of a token: its sum so far, and of this lane's route whether it was answered.
template <typename Traits>
struct Sum {
  float of[Traits::kSpan][kLaneElements] = {};
  std::uint32_t answered = 0;
};

/// Ranks that a warp awaits at a time.
template <typename Traits>
inline constexpr int kRanksAtOnce = 4 / Traits::kSpan;

/// Awaits the partial sums of the first few of `ranks`, and adds them. owner: of this lane's route.
template <typename Traits, bool kRecords>
__device__ __forceinline__ void sum_ranks(const Combine& c, int owner, int token, int step,
                                          std::uint32_t ranks, Patience& patience,
                                          Recorder<kRecords>& recorder, Sum<Traits>& sum,
                                          int lane) {
  constexpr int kRanks = kRanksAtOnce<Traits>;
  const Geometry& g = c.g;
  const int element = step * Traits::kStep + lane * kLaneElements;
  std::byte* const from = in_at(g, 0, g.layout.combine_row(c.bank, c.slot(token, 0))) +
                          within(element, g.hidden) * Traits::Output::kElementBytes;
  // Lane r: where rank r answers.
  const std::byte* const answer_at =
      in_at(g, lane < g.ranks ? lane : 0, g.layout.answer(c.bank, token));
  typename Traits::Output packets[kRanks] = {};
  int rank[kRanks];  // Those that there are not: the first one again.
  std::uint32_t awaited = 0;
#pragma unroll
  for (int i = 0; i < kRanks; ++i) {
    rank[i] = ranks != 0 ? __ffs(static_cast<int>(ranks)) - 1 : rank[0];
    awaited |= ranks & (~ranks + 1);
    ranks &= ranks - 1;
  }
  const bool asked = ((awaited >> lane) & 1U) != 0;
  std::uint32_t given_up = 0;
  std::uint32_t answered = 0;  // Lane r: by rank r.
#pragma unroll 1
  for (;;) {
    // Pair with the stores of send_sum() and begin_record() of the peers.
    const uint4 answer = load_packet(answer_at);
    bool empty = false;
#pragma unroll
    for (int i = 0; i < kRanks; ++i) {
      packets[i].take(from + g.layout.lane(rank[i]), element, g.hidden);
    }
#pragma unroll
    for (int i = 0; i < kRanks; ++i) empty = empty || packets[i].empty();
    const bool come = answer.x == c.tag;
    answered = come && answer.z == c.signature ? answer.y : 0;
    const bool tired = patience.weary();
    // Nothing of a rank comes if it answers that: rare, as is all that follows.
    const std::uint32_t silent = lanes_with(asked && come && answered == 0) | given_up;
    if (__all_sync(~0U, !empty && (come || !asked))) break;
    if (silent == 0 && !tired) continue;
    const std::uint32_t late = awaited & ~lanes_with(come) & ~given_up;
    std::uint32_t lacking = late;
#pragma unroll
    for (int i = 0; i < kRanks; ++i) {
      const bool waits = (((late | silent) >> rank[i]) & 1U) == 0 && packets[i].empty();
      if (__any_sync(~0U, waits)) lacking |= 1U << rank[i];
    }
    if (lacking == 0) break;
    if (!tired) continue;
    const Silence silence = listen(c, lacking, patience);
    given_up |= (silence.silent & late) | silence.gone;
  }
  recorder.mark(Phase::wait);
  std::uint32_t given = awaited & lanes_with(answered != 0) & ~given_up;
  const std::uint32_t by_owner = __shfl_sync(~0U, answered, owner & 31);
  if (owner >= 0 && ((given >> owner) & 1U) != 0 && ((by_owner >> lane) & 1U) != 0) {
    sum.answered = 1;
  }
#pragma unroll
  for (int turn = 0; turn < kRanks; ++turn) {
    const int i = mutant(KernelMutant::ranks_descending) ? kRanks - 1 - turn : turn;
    if (((given >> rank[i]) & 1U) == 0) continue;
    given &= ~(1U << rank[i]);
    packets[i].clear(from + g.layout.lane(rank[i]), element, g.hidden);
#pragma unroll
    for (int j = 0; j < Traits::kSpan; ++j) {
      float v[kLaneElements];
      packets[i].floats(j, v, Traits::codec(c.a));
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) sum.of[j][e] = sum.of[j][e] + v[e];
    }
  }
}

/// The same of all of `ranks`, where there are more than a warp awaits at a time: those who wait for the
/// first ones should not hold a sum in registers.
template <typename Traits, bool kRecords>
__device__ __noinline__ Sum<Traits> sum_further_ranks(Combine c, int owner, int token, int step,
                                                      std::uint32_t ranks, Patience patience,
                                                      Recorder<kRecords> recorder,
                                                      Sum<Traits> sum) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  while (ranks != 0) {
    sum_ranks<Traits>(c, owner, token, step, ranks, patience, recorder, sum, lane);
#pragma unroll
    for (int i = 0; i < kRanksAtOnce<Traits>; ++i) ranks &= ranks - 1;
  }
  return sum;
}

/// A piece of one token whose partial sums come from its ranks.
template <typename Traits, bool kRecords>
__device__ __forceinline__ void sum_token(const Combine& c, int token, int step, Patience& patience,
                                          Recorder<kRecords>& recorder, int lane) {
  std::uint32_t ranks = 0;
  HomeToken home = read_token(c, token, lane, ranks);
  ranks &= ~c.suspects;
  Sum<Traits> sum;
  if (ranks != 0) {
    sum_ranks<Traits>(c, home.owner, token, step, ranks, patience, recorder, sum, lane);
#pragma unroll
    for (int i = 0; i < kRanksAtOnce<Traits>; ++i) ranks &= ranks - 1;
    if (ranks != 0) {
      sum = sum_further_ranks<Traits>(c, home.owner, token, step, ranks, patience, recorder, sum);
    }
  }
  home.answered = lanes_with(sum.answered != 0);
  finish_token<Traits>(c, home, token, step, sum.of, lane);
  recorder.mark(Phase::sum);
}

/// Likewise with `single`: one chain over the routes.
template <typename Traits>
__device__ __forceinline__ void chain_token(const Combine& c, int token, int step,
                                            Patience& patience, int lane) {
  const Geometry& g = c.g;
  const int element = step * Traits::kStep + lane * kLaneElements;
  std::uint32_t ranks = 0;
  HomeToken home = read_token(c, token, lane, ranks);
  float sum[1][kLaneElements] = {};
  const float weight = merged_weight(home.expert, read_weight(c, token, lane), home.expected, lane);
#pragma unroll 1
  for (std::uint32_t left = home.expected; left != 0; left &= left - 1) {
    const int k = __ffs(static_cast<int>(left)) - 1;
    const std::uint32_t same = routes_to_same(home.expert, home.expected, k);
    if (__ffs(static_cast<int>(same)) - 1 != k) continue;  // Took part at its lowest route.
    const int rank = __shfl_sync(~0U, home.owner, k);
    if (((c.suspects >> rank) & 1U) != 0) continue;
    std::byte* const row = in_at(g, rank, g.layout.combine_row(c.bank, c.slot(token, k))) +
                           within(element, g.hidden) * Traits::Output::kElementBytes;
    typename Traits::Output packets = {};
    bool answered = false;
#pragma unroll 1
    for (;;) {
      const uint4 answer = load_packet(in_at(g, rank, g.layout.answer(c.bank, token)));
      packets.take(row, element, g.hidden);
      const bool come = __all_sync(~0U, answer.x == c.tag);
      answered = come && answer.z == c.signature && ((answer.y >> k) & 1U) != 0;
      if (come && __all_sync(~0U, !answered || !packets.empty())) break;
      if (!patience.weary()) continue;
      const Silence silence = listen(c, 1U << rank, patience);
      if ((silence.gone | (come ? 0U : silence.silent)) != 0) {
        answered = false;
        break;
      }
    }
    if (!__all_sync(~0U, answered)) continue;
    home.answered |= same;
    const float w = !Traits::kCommon && c.a.plain_sum ? 1.0F : __shfl_sync(~0U, weight, k);
    packets.clear(row, element, g.hidden);
    float v[kLaneElements];
    packets.floats(0, v, c.a.codec);
#pragma unroll
    for (int e = 0; e < kLaneElements; ++e) sum[0][e] = __fmaf_rn(w, v[e], sum[0][e]);
  }
  finish_token<Traits>(c, home, token, step, sum, lane);
}

/// Brings the weights of rank_major rows home.
__device__ __forceinline__ void take_row_weights(const Combine& c, int token, Patience& patience,
                                                 int lane) {
  std::uint32_t ranks = 0;
  const HomeToken home = read_token(c, token, lane, ranks);
  ranks &= ~c.suspects;
  float value = 0.0F;
#pragma unroll 1
  for (; ranks != 0; ranks &= ranks - 1) {
    const int rank = __ffs(static_cast<int>(ranks)) - 1;
    const int packet = lane < c.g.top_k ? lane / window::kPacketWeights : 0;
    const std::byte* at = in_at(c.g, rank, c.g.layout.row_weight(c.bank, token)) + packet * 16;
    const std::byte* const answer_at = in_at(c.g, rank, c.g.layout.answer(c.bank, token));
    bool given_up = false;
    uint4 v = load_packet(at);
    uint4 answer = load_packet(answer_at);  // Says whose the weights are.
#pragma unroll 1
    while (!given_up && !__all_sync(~0U, v.x == c.tag && answer.x == c.tag)) {
      if (patience.weary()) {
        const Silence silence = listen(c, 1U << rank, patience);
        given_up = (silence.silent | silence.gone) != 0;
      }
      v = load_packet(at);
      answer = load_packet(answer_at);
    }
    given_up = given_up || answer.z != c.signature;
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

}  // namespace sluice::engine::cuda
