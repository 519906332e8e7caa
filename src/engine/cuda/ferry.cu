// SPDX-License-Identifier: MIT
#include "engine/cuda/ferry.hpp"

#include "engine/cuda/ferry_sum.cuh"
#include "engine/cuda/operation.cuh"

/// What an operation's kernels wait for comes in packets that say by themselves what they are, in
/// whatever order: so a ferry needs no more than to copy them. (In throughput mode rows do not: a warp copies one, and then
/// says that it is there.) It runs beside those kernels.
///
/// Each block takes the items of its ring in order. None comes for kFerryIdleNs, or the launch is kFerryLifeNs old, and the host
/// expects no more; or none comes for kFerryExpectsNs: the block says that the launch ends, and ends; so do the others when they
/// find nothing. What is added later is carried by the next launch, which begins where this one has stopped: the host launches
/// it when items are left and no launch is under way, or when it begins to expect some (Ferry::step()).
namespace sluice::engine::cuda {
namespace {

/// Items that a block looks at while none comes: each look crosses PCIe, beside what it is for.
constexpr int kLooked = 8;
constexpr int kEach =
    static_cast<int>(kFerryPackets) / 32;  // Packets that a lane asks for at once.

__device__ __forceinline__ std::byte* lane_at(const FerryArgs& f, uint4 item, int rank) {
  return f.windows[rank] + f.layout.lane(static_cast<int>(item.w >> 4) & 15) + item.y;
}

/// Packets to each of several places.
template <typename Place>
__device__ __forceinline__ void copy_packets(const std::byte* from, int packets,
                                             std::uint32_t ranks, const Place& place,
                                             FerryTeam team, int lane) {
#pragma unroll 1
  for (int first = team.member * kEach * 32; first < packets; first += team.size * kEach * 32) {
    uint4 held[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = first + i * 32 + lane;
      if (at < packets) held[i] = load_packet(from + at * int{window::kPacketBytes});
    }
#pragma unroll 1
    for (std::uint32_t left = ranks; left != 0; left &= left - 1) {
      std::byte* const to = place(__ffs(static_cast<int>(left)) - 1);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int at = first + i * 32 + lane;
        // Pairs with the loads of the reader, as a peer's own store does.
        if (at < packets) store_packet(to + at * int{window::kPacketBytes}, held[i]);
      }
    }
  }
}

/// To what a source's answer and all that belongs to it goes.
__device__ __forceinline__ std::byte* answer_lane(const FerryArgs& f, const FerryTokenOf& of) {
  return f.windows[f.rank] +
         (of.what == FerryItem::kSumAnswer ? f.sums[of.source] : f.layout.lane(of.source));
}

/// That a row or an answer is there, which has been carried. By one warp.
__device__ __forceinline__ void say(const FerryArgs& f, uint4 item, uint4 answer, int lane) {
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
__device__ __forceinline__ void carry_row(const FerryArgs& f, uint4 item, const FerryTokenOf& of,
                                          FerryTeam team, int lane) {
  const std::size_t offset = f.layout.staged_offset(of.bank, of.token);
  copy_packets(
      f.landed[of.source] + offset, static_cast<int>(item.z & 0xffffU), 1,
      [&](int /*rank*/) { return f.windows[f.rank] + f.landings[of.source] + offset; }, team, lane);
}

/// What belongs to an answer of a combine, into its lane. Returns the answer, to the team's first lane.
__device__ __forceinline__ uint4 carry_answer(const FerryArgs& f, uint4 item,
                                              const FerryTokenOf& of, FerryTeam team, int lane) {
  const window::PacketLayout& layout = f.layout;
  const std::byte* const from = f.lanes_in[of.source];
  std::byte* const to = answer_lane(f, of);
  const auto copy_row = [&](int route, int packets) {
    const std::uint32_t row =
        layout.combine_row(of.bank, of.token * layout.shape().combine_rows_per_token + route);
    copy_packets(
        f.row_lanes_in[of.source] + row, packets, 1, [&](int /*rank*/) { return to + row; }, team,
        lane);
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
  if (mutant(KernelMutant::said_before_carried) && team.leads()) say(f, item, answer, lane);
  const auto packets = static_cast<int>(item.z & (kPerRoute - 1U));
  std::uint32_t rows = packets != 0 ? 1 : 0;  // Their sum.
  if (per_route) rows = __shfl_sync(~0U, answer.w, 0);
#pragma unroll 1
  for (; rows != 0; rows &= rows - 1) copy_row(__ffs(static_cast<int>(rows)) - 1, packets);
  if (weighs) store_packet(to + weights_at, weights);
  return answer;
}

/// A word. By one warp.
__device__ __forceinline__ void tell(const FerryArgs& f, uint4 item, int lane) {
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

/// Returns what say() needs besides.
__device__ __forceinline__ uint4 carry(const FerryArgs& f, uint4 item, FerryTeam team, int lane) {
  const FerryTokenOf of(item);
  const std::uint32_t what = of.what;
  switch (what) {
    case FerryItem::kPackets:
    case FerryItem::kRowPackets:
      copy_packets((what == FerryItem::kPackets ? f.host : f.rows) +
                       std::size_t{item.x} * window::kPacketBytes,
                   static_cast<int>(item.z & 0xffffU), item.z >> 16,
                   [&](int rank) { return lane_at(f, item, rank); }, team, lane);
      break;
    case FerryItem::kRow:
      if (mutant(KernelMutant::said_before_carried) && team.leads()) say(f, item, {}, lane);
      carry_row(f, item, of, team, lane);
      break;
    case FerryItem::kAnswer:
    case FerryItem::kSumAnswer: return carry_answer(f, item, of, team, lane);
    case FerryItem::kSumOfBf16:
    case FerryItem::kSumOfF16:
    case FerryItem::kSumOfF32: FerrySum(f, item, lane).carry(team, lane); break;
    default:
      if (team.leads()) tell(f, item, lane);
  }
  return {};
}

/// Whether the host expects more items.
__device__ __forceinline__ bool expects(const FerryArgs& f) {
  // Pairs with the store in Ferry::expect().
  return load_relaxed(reinterpret_cast<const std::uint64_t*>(
             f.counts + kFerryExpectsLine * int{window::kLineBytes})) != 0;
}

/// How many items there are from `number` on, of `looked` at first, of which lane i gets the i-th. Below zero: no more are waited
/// for. By one warp.
__device__ __forceinline__ int await_items(const FerryArgs& f, std::uint64_t number, int looked,
                                           std::uint64_t began, uint4& item, int lane) {
  const FerryItem* const ring = f.items + blockIdx.x * kFerryRing;
  const std::uint64_t own = number + static_cast<std::uint64_t>(lane);
  const std::uint64_t since = now_ns();
  std::uint64_t idle = kFerryIdleNs;
  for (;;) {
    // Pairs with the store in Ferry::push(). (Nothing is kept in the L1, which loads that acquire empty.)
    if (lane < looked) item = load_packet_acquire(&ring[own % kFerryRing]);
    const std::uint64_t closing = load_relaxed(&f.state->closing);  // On its way with the item.
    const std::uint32_t missing =
        __ballot_sync(~0U, lane >= looked || item.w >> 8 != FerryItem::turn(own));
    if (missing == 0) return 32;
    const int count = __ffs(static_cast<int>(missing)) - 1;
    if (count > 0) return count;
    looked = kLooked;
    const std::uint64_t now = now_ns();
    bool over = now - since > kFerryExpectsNs || closing == f.number;
    if (now - since > idle || now - began > kFerryLifeNs) {
      // The host's word is asked for once in a while: it would cross PCIe beside what it is about.
      over = over || !expects(f);
      idle += kFerryIdleNs;
      began = now;
    }
    if (!__any_sync(~0U, over)) continue;
    if (lane == 0) store_relaxed(&f.state->closing, f.number);
    return -1;
  }
}

__global__ void __launch_bounds__(kFerryThreads, 2)
    ferry_kernel(__grid_constant__ Parameter<FerryArgs> f) {
  __shared__ uint4 items[32];
  __shared__ int there;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const std::uint64_t began = now_ns();
  std::uint64_t number = f.state->carried[blockIdx.x];
  int looked = kLooked;
  for (;;) {
    if (warp == 0) {
      uint4 item;
      const int count = await_items(f, number, looked, began, item, lane);
      looked = count < looked ? kLooked : 32;  // Where all are there, there may be more.
      items[lane] = item;
      if (lane == 0) there = count;
    }
    __syncthreads();
    const int count = there;
    if (count < 0) break;
    const FerryTeam team(count, warp);
    const int first = warp / team.size;
    uint4 held = {};
#pragma unroll 1
    for (int i = first; i < count; i += kFerryWarps / team.size) {
      held = carry(f, items[i], team, lane);
      if (team.size > 1) break;
      __syncwarp();
      say(f, items[i], held, lane);
    }
    number += static_cast<std::uint64_t>(count);
    __syncthreads();
    if (team.size > 1) {
      if (team.leads() && first < count) say(f, items[first], held, lane);
      __syncthreads();  // What is counted has been said.
    }
    // What was copied was read: it may be overwritten. By a thread that nobody waits for. Pairs with the load in
    // Ferry::count().
    if (threadIdx.x == kFerryThreads - 1) {
      store_release(
          reinterpret_cast<std::uint64_t*>(f.counts + blockIdx.x * int{window::kLineBytes}),
          number);
    }
  }
  // By the thread that has counted: the end is told after the counts.
  if (threadIdx.x != kFerryThreads - 1) return;
  f.state->carried[blockIdx.x] = number;
  fence_system();
  if (atomicAdd(&f.state->ended_blocks, 1U) + 1 != gridDim.x) return;
  f.state->ended_blocks = 0;
  fence_system();
  // Pairs with the load in Ferry::step().
  store_release(
      reinterpret_cast<std::uint64_t*>(f.counts + kFerryEndedLine * int{window::kLineBytes}),
      f.number);
}

}  // namespace

int launch_ferry(const FerryArgs& args, void* stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kFerryBlocks);
  config.blockDim = dim3(kFerryThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  return cudaLaunchKernelEx(&config, ferry_kernel, args);
}

int load_ferry_kernel() {
  return load_kernel(ferry_kernel, 0);
}

}  // namespace sluice::engine::cuda
