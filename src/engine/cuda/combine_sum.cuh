// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/combine_verdict.cuh"

/// combine, receive half: awaits what ranks, or nodes, answer of a piece of a token, and adds it.
namespace sluice::engine::cuda {

/// What is known of a piece of a token: its sum so far, and of this lane's route whether it was answered.
template <typename Traits>
struct Sum {
  float of[Traits::kSpan][kLaneElements] = {};
  std::uint32_t answered = 0;
  bool was_weary = false;
};

/// Awaits the partial sums of the first few of `ranks`, and adds them. owner: of this lane's route.
template <typename Traits, bool kRecords>
__device__ __forceinline__ void sum_ranks(const Combine& c, int owner, int token, int step,
                                          std::uint32_t ranks, Patience& patience,
                                          Recorder<kRecords>& recorder, Sum<Traits>& sum,
                                          int lane) {
  constexpr int kRanks = kRanksAtOnce;
  static_assert(Traits::kSpan == 1);
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
  bool looked = false;
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
    const bool here = __all_sync(~0U, !empty && (come || !asked));
    if (here && !patience.was_weary()) break;
    if (silent == 0 && !tired && !here) continue;
    const std::uint32_t late = awaited & ~lanes_with(come) & ~given_up;
    std::uint32_t lacking = late;
#pragma unroll
    for (int i = 0; i < kRanks; ++i) {
      const bool waits = (((late | silent) >> rank[i]) & 1U) == 0 && packets[i].empty();
      if (__any_sync(~0U, waits)) lacking |= 1U << rank[i];
    }
    if (lacking == 0 && (looked || !patience.was_weary())) break;
    if (lacking != 0 && !tired) continue;
    looked = lacking == 0;
    const Silence silence = listen(c, lacking, patience);
    given_up |= (silence.silent & late) | (silence.gone & awaited);
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
    packets[i].clear(from + g.layout.lane(rank[i]), element, g.hidden, c.tag);
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
    for (int i = 0; i < kRanksAtOnce; ++i) ranks &= ranks - 1;
  }
  sum.was_weary = patience.was_weary();
  return sum;
}

/// What another node answers of a token, once it has come, or will not.
struct Awaited {
  std::uint32_t routes = 0;
  bool taken = false;  // It is of this call, and counts.
  bool gone = false;   // Who brings it was given up.
};
/// By one warp.
__device__ __forceinline__ Awaited await_node(const Combine& c, int giver, int token,
                                              Patience& patience) {
#pragma unroll 1
  for (;;) {
    const Given given = ask_giver<kFormWordOfLatency>(c, giver, token);
    const bool here = __all_sync(~0U, given.answer.x == c.tag) || __all_sync(~0U, given.none);
    const bool tired = patience.weary();
    if (!here && !tired) continue;
    if (patience.was_weary()) {
      const Silence silence = listen(c, here ? 0 : 1U << giver, patience);
      if (((silence.gone >> giver) & 1U) != 0) return {0, false, true};
      if (!here) continue;
    }
    const bool taken = given.answer.x == c.tag && given.answer.z == c.signature;
    return {taken ? given.answer.y : 0U, taken, false};
  }
}

/// Awaits the sum of another node, and adds it. owner: of this lane's route. By one warp.
template <typename Traits>
__device__ __forceinline__ void add_node(const Combine& c, int owner, int giver, int token,
                                         int step, Patience& patience, Sum<Traits>& sum, int lane) {
  const Geometry& g = c.g;
  const std::uint32_t answered = await_node(c, giver, token, patience).routes;
  if (answered == 0) return;
  if (owner == giver && ((answered >> lane) & 1U) != 0) sum.answered = 1;
  const int element = step * Traits::kStep + lane * kLaneElements;
  typename Traits::Output packets;
  std::byte* const row =
      answer_in<Traits>(c, giver, g.layout.combine_row(c.bank, c.slot(token, 0)));
  packets.take(row + within(element, g.hidden) * Traits::Output::kElementBytes, element, g.hidden);
  // That this piece was taken, for count_taken(): all else of it is overwritten before its answer comes again.
  if (lane == 0) clear_packet(row + element * Traits::Output::kElementBytes, c.tag);
#pragma unroll
  for (int j = 0; j < Traits::kSpan; ++j) {
    float v[kLaneElements];
    packets.floats(j, v, Traits::codec(c.a));
#pragma unroll
    for (int e = 0; e < kLaneElements; ++e) sum.of[j][e] = sum.of[j][e] + v[e];
  }
}

/// As a neighbour that adds up for another node sends it: encoded, and decoded at home.
template <typename Traits>
__device__ __forceinline__ void round_node(const CombineArgs& a,
                                           float (&sum)[Traits::kSpan][kLaneElements]) {
  if (mutant(KernelMutant::node_not_rounded)) return;
  typename Traits::Output packets;
#pragma unroll
  for (int j = 0; j < Traits::kSpan; ++j) {
    packets.encode(j, sum[j], Traits::codec(a));
    packets.floats(j, sum[j], Traits::codec(a));
  }
}

/// The same with `reduce = node`: the sums of nodes, ascending, of which this rank forms that of its own.
template <typename Traits, bool kRecords>
__device__ __noinline__ Sum<Traits> sum_nodes(Combine c, int owner, int token, int step,
                                              std::uint32_t ranks, Patience patience,
                                              Recorder<kRecords> recorder) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const NodeTable& nodes = c.g.state->nodes;
  Sum<Traits> sum;
#pragma unroll 1
  for (int node = 0; node < nodes.nodes; ++node) {
    const int giver = nodes.giver[node];
    if (giver != c.g.rank) {
      if (((ranks >> giver) & 1U) == 0) continue;
      add_node<Traits>(c, owner, giver, token, step, patience, sum, lane);
      recorder.mark(Phase::wait);
      continue;
    }
    std::uint32_t near = ranks & nodes.near;
    if (near == 0) continue;
    Sum<Traits> own;
#pragma unroll 1
    while (near != 0) {
      sum_ranks<Traits>(c, owner, token, step, near, patience, recorder, own, lane);
#pragma unroll
      for (int i = 0; i < kRanksAtOnce; ++i) near &= near - 1;
    }
    round_node<Traits>(c.a, own.of);
    sum.answered |= own.answered;
#pragma unroll
    for (int j = 0; j < Traits::kSpan; ++j) {
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) sum.of[j][e] = sum.of[j][e] + own.of[j][e];
    }
  }
  sum.was_weary = patience.was_weary();
  return sum;
}

}  // namespace sluice::engine::cuda
