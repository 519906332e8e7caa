// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/combine_sum.cuh"

/// combine, receive half: home adds the partial sums of a token, ranks ascending, as soon as they are
/// there.
namespace sluice::engine::cuda {

/// What the sum of a token is multiplied by of whose routes only some were answered.
static __device__ __noinline__ float surviving_scale(float weight, std::uint32_t expected,
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
  if (lost != 0 && home.answered != 0 && a.renormalize && !mutant(KernelMutant::loss_not_scaled)) {
    scale = surviving_scale(read_weight(c, token, lane), home.expected, home.answered);
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

/// Of a token whose routes were not all answered, or some only after a long wait: what was lost. By one warp, after
/// some of the token's pieces were stored, or all. closed: peers that are given up; lacking: those of them of
/// whose records more is missing than pieces.
template <typename Traits>
__device__ __forceinline__ void settle_token(const Combine& c, int token, std::uint32_t closed,
                                             std::uint32_t lacking, bool reported, int lane) {
  const CombineArgs& a = c.a;
  const Geometry& g = c.g;
  std::uint32_t ranks = 0;
  HomeToken home = read_token(c, token, lane, ranks);
  ask_givers<Traits>(c, home, ranks);
  ranks &= ~c.block.absent;
  std::uint32_t none = 0;
  bool lost = false;
#pragma unroll 1
  for (std::uint32_t left = ranks & closed; left != 0; left &= left - 1) {
    const int rank = __ffs(static_cast<int>(left)) - 1;
    const Taken record = count_taken<Traits>(c, rank, token, lane);
    const bool some = record.taken != record.all || ((lacking >> rank) & 1U) != 0;
    if (record.taken == 0) {
      none |= 1U << rank;
    } else if (some && !mutant(KernelMutant::parts_kept)) {
      lost = true;
    }
  }
  if (a.weights_home != nullptr && lane < g.top_k && home.owner >= 0 &&
      (lost || ((none >> home.owner) & 1U) != 0)) {
    a.weights_home[token * a.weights_home_stride[0] + lane * a.weights_home_stride[1]] = 0.0F;
  }
  if (lost) {
    const int steps = (g.hidden + Traits::kStep - 1) / Traits::kStep;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      float nothing[Traits::kSpan][kLaneElements] = {};
      finish_token<Traits>(c, home, token, step, nothing, lane);
    }
  } else {
    const bool asked = ((ranks & ~none) >> lane) & 1U;
    bool silent = false;
    uint4 answer = make_uint4(0, 0, 0, 0);
    if (asked && gives_sums<Traits>(c, lane)) {
      const Given given = ask_giver<kFormWordOfLatency>(c, lane, token);
      answer = given.answer;
      silent = given.none;
    } else {
      answer = load_packet(in_at(g, asked ? lane : g.rank, g.layout.answer(c.bank, token)));
      if (asked && answer.x != c.tag) silent = says_nothing(g, c.tag, c.bank, c.signature, lane);
    }
    const bool come = answer.x == c.tag;
    // Who takes its pieces will wait for it.
    if (__any_sync(~0U, asked && !come && !silent)) return;
    const std::uint32_t answered = asked && come && answer.z == c.signature ? answer.y : 0;
    int route = lane;  // Which speaks for this lane's.
    if constexpr (Traits::kSingle) {
#pragma unroll 1
      for (int k = 0; k < g.top_k; ++k) {
        const std::uint32_t same = routes_to_same(home.expert, home.expected, k);
        if (((same >> lane) & 1U) != 0) route = __ffs(static_cast<int>(same)) - 1;
      }
    }
    const std::uint32_t by_owner = __shfl_sync(~0U, answered, home.owner & 31);
    home.answered = lanes_with(home.owner >= 0 && ((by_owner >> route) & 1U) != 0);
  }
  const std::uint32_t unanswered = home.expected & ~home.answered;
  if (unanswered != 0 && lane == 0 && !mutant(KernelMutant::loss_not_counted)) {
    report_lost(&a, c.tag, c.bank, token, __popc(unanswered), reported);
  }
}

/// What a warp does after its last piece that missed routes or was weary: for all tokens of the block's pieces, or
/// one.
template <typename Traits>
__device__ __noinline__ void settle(const CombineArgs* args, const Block* block,
                                    std::uint32_t signature, std::uint32_t tag, int bank, int only,
                                    std::uint32_t lacking) {
  const CombineArgs& a = *args;
  const HandleArrays handle{const_cast<std::byte*>(a.handle), &a.handle_layout};
  const Combine c{a, a.geometry, handle, signature, tag, *block, bank, 0};
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::uint32_t closed = closed_peers(c.g, c.tag, c.bank, false) & ~c.block.absent;
  const std::uint32_t peers = closed & ~(1U << c.g.rank);
  const bool reported = lane == 0 && await_report(&a, c.tag, c.bank);
  if (lane == 0 && peers != 0) {
    const std::uint32_t known = atomicOr(&c.g.state->absent, peers);
    report_missing(&a, peers & ~known, reported);
  }
  const Crew crew(c.g, 1, 0);
  const int parts = static_cast<int>(a.taken_divisor.divisor);
  int task = only >= 0 ? only * parts : crew.workers - 1 - crew.block;
  const int end = only >= 0 ? task + 1 : a.tokens * parts;
  int last = -1;
#pragma unroll 1
  for (; task < end; task += crew.workers) {
    const int token = quotient(task, a.taken_divisor);
    // If nobody is given up, who has the first piece sees what all see.
    if (closed == 0 ? task != token * parts : token == last) continue;
    last = token;
    settle_token<Traits>(c, token, closed, lacking, reported, lane);
  }
}

/// A piece of one token whose partial sums come from its ranks. Returns its routes that nobody answered.
template <typename Traits, bool kRecords>
__device__ __forceinline__ std::uint32_t sum_token(const Combine& c, int token, int step,
                                                   Patience& patience, Recorder<kRecords>& recorder,
                                                   int lane) {
  std::uint32_t ranks = 0;
  HomeToken home = read_token(c, token, lane, ranks);
  ask_givers<Traits>(c, home, ranks);
  ranks &= ~c.block.absent;
  Sum<Traits> sum;
  if (Traits::kSums && c.a.by_node) {
    if constexpr (Traits::kSums) {
      sum = sum_nodes<Traits>(c, home.owner, token, step, ranks, patience, recorder);
      if (sum.was_weary) patience.remember();
    }
  } else if (ranks != 0) {
    sum_ranks<Traits>(c, home.owner, token, step, ranks, patience, recorder, sum, lane);
    if constexpr (Traits::kFurtherRanks) {
#pragma unroll
      for (int i = 0; i < kRanksAtOnce; ++i) ranks &= ranks - 1;
      if (ranks != 0) {
        sum = sum_further_ranks<Traits>(c, home.owner, token, step, ranks, patience, recorder, sum);
        if (sum.was_weary) patience.remember();
      }
    }
  }
  home.answered = lanes_with(sum.answered != 0);
  finish_token<Traits>(c, home, token, step, sum.of, lane);
  recorder.mark(Phase::sum);
  return home.expected & ~home.answered;
}

/// Likewise with `single`: one chain over the routes.
template <typename Traits>
__device__ __forceinline__ std::uint32_t chain_token(const Combine& c, int token, int step,
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
    if (((c.block.absent >> rank) & 1U) != 0) continue;
    std::byte* const row = in_at(g, rank, g.layout.combine_row(c.bank, c.slot(token, k))) +
                           within(element, g.hidden) * Traits::Output::kElementBytes;
    typename Traits::Output packets = {};
    bool answered = false;
#pragma unroll 1
    for (;;) {
      const uint4 answer = load_packet(in_at(g, rank, g.layout.answer(c.bank, token)));
      packets.take(row, element, g.hidden);
      const bool come = __all_sync(~0U, answer.x == c.tag);
      const bool tired = patience.weary();
      answered = come && answer.z == c.signature && ((answer.y >> k) & 1U) != 0;
      if (come && __all_sync(~0U, !answered || !packets.empty())) {
        if (patience.was_weary() && ((listen(c, 0, patience).gone >> rank) & 1U) != 0) {
          answered = false;
        }
        break;
      }
      if (!tired) continue;
      const Silence silence = listen(c, 1U << rank, patience);
      if ((((silence.gone >> rank) & 1U) | (come ? 0U : silence.silent)) != 0) {
        answered = false;
        break;
      }
    }
    if (!__all_sync(~0U, answered)) continue;
    home.answered |= same;
    const float w = !Traits::kCommon && c.a.plain_sum ? 1.0F : __shfl_sync(~0U, weight, k);
    packets.clear(row, element, g.hidden, c.tag);
    float v[kLaneElements];
    packets.floats(0, v, c.a.codec);
#pragma unroll
    for (int e = 0; e < kLaneElements; ++e) sum[0][e] = __fmaf_rn(w, v[e], sum[0][e]);
  }
  finish_token<Traits>(c, home, token, step, sum, lane);
  return home.expected & ~home.answered;
}

/// Brings the weights of rank_major rows home.
template <typename Traits>
__device__ __forceinline__ void take_row_weights(const Combine& c, int token, Patience& patience,
                                                 int lane) {
  std::uint32_t ranks = 0;
  HomeToken home = read_token(c, token, lane, ranks);
  ask_givers<Traits>(c, home, ranks);
  ranks &= ~c.block.absent;
  float value = 0.0F;
  std::uint32_t lacking = 0;
#pragma unroll 1
  for (; ranks != 0; ranks &= ranks - 1) {
    const int rank = __ffs(static_cast<int>(ranks)) - 1;
    const int packet = lane < c.g.top_k ? lane / window::kPacketWeights : 0;
    const std::byte* at =
        answer_in<Traits>(c, rank, c.g.layout.row_weight(c.bank, token)) + packet * 16;
    if (gives_sums<Traits>(c, rank)) {
      const Awaited awaited = await_node(c, rank, token, patience);
      if (awaited.gone) lacking |= 1U << rank;
      if (!awaited.taken || home.owner != rank) continue;
      const uint4 v = load_packet(at);
      if (v.x == c.tag) value = weight_in(v, lane);
      continue;
    }
    const std::byte* const answer_at = in_at(c.g, rank, c.g.layout.answer(c.bank, token));
    bool given_up = false;
    uint4 v = load_packet(at);
    uint4 answer = load_packet(answer_at);  // Says whose the weights are.
#pragma unroll 1
    while (!given_up && !__all_sync(~0U, v.x == c.tag && answer.x == c.tag)) {
      if (patience.weary()) {
        const Silence silence = listen(c, 1U << rank, patience);
        given_up = (silence.silent | ((silence.gone >> rank) & 1U)) != 0;
        if (((silence.gone >> rank) & 1U) != 0) lacking |= 1U << rank;
      }
      v = load_packet(at);
      answer = load_packet(answer_at);
    }
    given_up = given_up || answer.z != c.signature;
    if (!given_up && home.owner == rank) value = weight_in(v, lane);
  }
  if (lane < c.g.top_k) {
    c.a.weights_home[token * c.a.weights_home_stride[0] + lane * c.a.weights_home_stride[1]] =
        value;
  }
  if (patience.was_weary()) {
    settle<Traits>(&c.a, &c.block, c.signature, c.tag, c.bank, token, lacking);
  }
}

}  // namespace sluice::engine::cuda
