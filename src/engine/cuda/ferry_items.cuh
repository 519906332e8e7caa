// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/ferry_slices.cuh"
#include "engine/cuda/ferry_sum.cuh"
#include "engine/cuda/operation.cuh"

/// How each item of a ferry is carried.
///
/// What an operation's kernels wait for comes in packets that say by themselves what they are, in
/// whatever order: so a ferry needs no more than to copy them. (In throughput mode rows do not: a warp copies one, and then
/// says that it is there.)
namespace sluice::engine::cuda {

/// A row from one place to another.
template <typename Shape>
__device__ __forceinline__ void copy_packets(const std::byte* from, std::byte* to, int packets,
                                             FerryTeam team, int lane) {
  constexpr int kEach = Shape::kEach;
#pragma unroll 1
  for (int first = team.member * kEach * 32; first < packets; first += team.size * kEach * 32) {
    uint4 held[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = first + i * 32 + lane;
      if (at < packets) held[i] = load_packet(from + at * int{window::kPacketBytes});
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = first + i * 32 + lane;
      // Pairs with the loads of the reader, as a peer's own store does.
      if (at < packets) store_packet(to + at * int{window::kPacketBytes}, held[i]);
    }
  }
}

/// To what a source's answer and all that belongs to it goes.
__device__ __forceinline__ std::byte* answer_lane(const FerryArgs& f, const FerryTokenOf& of) {
  return f.windows[f.rank] +
         (of.what == FerryItem::kSumAnswer ? f.sums[of.source] : f.layout.lane(of.source));
}

/// That a row or an answer is there, which has been carried. By one warp.
__device__ __forceinline__ void say_item(const FerryArgs& f, uint4 item, uint4 answer, int lane) {
  const FerryTokenOf of(item);
  if (of.what == FerryItem::kRow) {
    fence_system();
    if (lane >= kPeersMax || ((item.z >> (16 + lane)) & 1U) == 0) return;
    // Pairs with Puller::ask().
    store_relaxed(reinterpret_cast<std::uint32_t*>(f.windows[lane] + f.layout.lane(of.source) +
                                                   f.layout.staged_word(of.bank, of.token)),
                  item.x);
  } else if (of.what == FerryItem::kAnswer || of.what == FerryItem::kSumAnswer) {
    fence_system();
    // Pairs with Summer::ask() and ask_giver().
    if (lane == 0) {
      store_packet(answer_lane(f, of) + f.layout.answer(of.bank, of.token), answer);
    }
  }
}

/// A row of a dispatch.
template <typename Shape>
__device__ __forceinline__ void carry_row(const FerryArgs& f, uint4 item, const FerryTokenOf& of,
                                          FerryTeam team, int lane) {
  const std::size_t offset = f.layout.staged_offset(of.bank, of.token);
  copy_packets<Shape>(f.landed[of.source] + offset,
                      f.windows[f.rank] + f.landings[of.source] + offset,
                      static_cast<int>(item.z & 0xffffU), team, lane);
}

/// What belongs to an answer of a combine, into its lane. Returns the answer, to the team's first lane.
template <typename Shape>
__device__ __forceinline__ uint4 carry_answer(const FerryArgs& f, uint4 item,
                                              const FerryTokenOf& of, FerryTeam team, int lane) {
  const window::PacketLayout& layout = f.layout;
  const std::byte* const from = f.lanes_in[of.source];
  std::byte* const to = answer_lane(f, of);
  const auto copy_row = [&](int route, int packets) {
    const std::uint32_t row =
        layout.combine_row(of.bank, of.token * layout.shape().combine_rows_per_token + route);
    copy_packets<Shape>(f.row_lanes_in[of.source] + row, to + row, packets, team, lane);
  };
  constexpr auto kPerRoute = static_cast<std::uint32_t>(FerryItem::kRowPerRoute);
  const bool per_route = (item.z & kPerRoute) != 0;
  // By one warp: a line of host memory that several ask for is brought for one after the other. What is asked for here comes at
  // the same time as the row, if that is not known by the answer.
  uint4 answer = {};
  if (lane == 0 && (team.leads() || per_route)) {
    answer = load_packet(from + layout.answer(of.bank, of.token));
  }
  const bool weighs = team.leads() && lane < layout.weight_packets();
  const std::uint32_t weights_at = layout.row_weight(of.bank, of.token) +
                                   static_cast<std::uint32_t>(lane) * window::kPacketBytes;
  uint4 weights = {};
  if (weighs) weights = load_packet(from + weights_at);
  if (mutant(KernelMutant::said_before_carried) && team.leads()) say_item(f, item, answer, lane);
  const auto packets = static_cast<int>(item.z & (kPerRoute - 1U));
  std::uint32_t rows = packets != 0 ? 1 : 0;  // Their sum.
  if (per_route) rows = __shfl_sync(~0U, answer.w, 0);
#pragma unroll 1
  for (; rows != 0; rows &= rows - 1) copy_row(__ffs(static_cast<int>(rows)) - 1, packets);
  if (weighs) store_packet(to + weights_at, weights);
  return answer;
}

/// A word. By one warp.
__device__ __forceinline__ void tell_item(const FerryArgs& f, uint4 item, int lane) {
  const std::uint32_t what = item.w & 15U;
  const auto word = item.x | static_cast<std::uint64_t>(item.z) << 32;
  if (what == FerryItem::kTold) {
    auto* const at = reinterpret_cast<std::uint64_t*>(lane_at(f, item, f.rank));
    if (lane != 0) return;
    // Pairs with open() of the reader. Such words only grow, and another warp may have told a later one.
    fence_system();
    if (mutant(KernelMutant::older_word_told)) return store_relaxed(at, word);
    atomicMax(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(word));
  } else if (what == FerryItem::kSummed) {
    std::byte* const sums = f.windows[f.rank] + f.sums[static_cast<int>(item.w >> 4) & 15];
    // Pairs with ask_giver(). A bank's next one comes only when this one was read.
    if (lane == 0) store_release(reinterpret_cast<std::uint64_t*>(sums + item.y), word);
  } else {  // FerryItem::kAccused
    if (lane >= kPeersMax || ((item.z >> (16 + lane)) & 1U) == 0) return;
    // Pairs with is_accused() of the reader. Before this is counted, and so before anything is overwritten.
    store_relaxed(reinterpret_cast<std::uint64_t*>(lane_at(f, item, lane)), std::uint64_t{1});
  }
}

/// What is not sliced. Returns what say_item() needs besides.
template <typename Shape>
__device__ __forceinline__ uint4 carry_item(const FerryArgs& f, uint4 item, FerryTeam team,
                                            int lane) {
  const FerryTokenOf of(item);
  const std::uint32_t what = of.what;
  switch (what) {
    case FerryItem::kRow:
      if (mutant(KernelMutant::said_before_carried) && team.leads()) say_item(f, item, {}, lane);
      carry_row<Shape>(f, item, of, team, lane);
      break;
    case FerryItem::kAnswer:
    case FerryItem::kSumAnswer: return carry_answer<Shape>(f, item, of, team, lane);
    case FerryItem::kSumOfBf16:
    case FerryItem::kSumOfF16:
    case FerryItem::kSumOfF32: FerrySum<Shape>(f, item, lane).carry(team, lane); break;
    default:
      if (team.leads()) tell_item(f, item, lane);
  }
  return {};
}

}  // namespace sluice::engine::cuda
