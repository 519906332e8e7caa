// SPDX-License-Identifier: MIT
#include "engine/cuda/ferry.hpp"

#include "engine/cuda/combine_parts.cuh"
#include "engine/cuda/operation.cuh"

/// What an operation's kernels wait for comes in packets that say by themselves what they are, in
/// whatever order: so a ferry needs no more than to copy them. (In throughput mode rows do not: a warp copies one, and then
/// says that it is there.) It runs beside those kernels.
///
/// Each block takes the items of its ring in order. None comes for kFerryIdleNs, or the launch is kFerryLifeNs old: the
/// block says that the launch ends, and ends; so do the others when they find nothing. What is added later is carried by
/// the next launch, which begins where this one has stopped: the host launches it when items are left and no launch is
/// under way (Ferry::step()).
namespace sluice::engine::cuda {
namespace {

constexpr int kFerryThreads = 512;
constexpr int kFerryWarps = kFerryThreads / 32;
constexpr int kEach = static_cast<int>(kFerryPackets) / 32;

__device__ __forceinline__ std::byte* lane_at(const FerryArgs& f, uint4 item, int rank) {
  return f.windows[rank] + f.layout.lane(static_cast<int>(item.w >> 4) & 15) + item.y;
}

/// Packets to each of several places. By one warp.
template <typename Place>
__device__ __forceinline__ void copy_packets(const std::byte* from, int packets,
                                             std::uint32_t ranks, const Place& place, int lane) {
#pragma unroll 1
  for (int first = 0; first < packets; first += kEach * 32) {
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

/// A row of a dispatch, and then that it is there. By one warp.
__device__ __forceinline__ void carry_row(const FerryArgs& f, uint4 item, int source, int bank,
                                          int token, int lane) {
  const std::size_t offset = f.layout.staged_offset(bank, token);
  const auto say = [&] {
    if (lane >= kPeersMax || ((item.z >> (16 + lane)) & 1U) == 0) return;
    // Pairs with Puller::ask().
    store_relaxed(reinterpret_cast<std::uint32_t*>(f.windows[lane] + f.layout.lane(source) +
                                                   f.layout.staged_word(bank, token)),
                  item.x);
  };
  if (mutant(KernelMutant::said_before_carried)) say();
  copy_packets(
      f.landed[source] + offset, static_cast<int>(item.z & 0xffffU), 1,
      [&](int /*rank*/) { return f.windows[f.rank] + f.landings[source] + offset; }, lane);
  __syncwarp();
  fence_system();
  say();
}

/// An answer of a combine into a lane, after what belongs to it. By one warp.
__device__ __forceinline__ void carry_answer(const FerryArgs& f, uint4 item, int source, int bank,
                                             int token, std::byte* to, int lane) {
  const std::byte* const from = f.lanes_in[source];
  const auto copy = [&](const std::byte* of, std::uint32_t offset, int packets) {
    copy_packets(
        of + offset, packets, 1, [&](int /*rank*/) { return to + offset; }, lane);
  };
  const uint4 answer = load_packet(from + f.layout.answer(bank, token));
  const int each = f.layout.shape().combine_rows_per_token;
  constexpr auto kPerRoute = static_cast<std::uint32_t>(FerryItem::kRowPerRoute);
  const auto packets = static_cast<int>(item.z & (kPerRoute - 1U));
  std::uint32_t rows = answer.w;
  if ((item.z & kPerRoute) == 0) rows = rows != 0 ? 1 : 0;  // Their sum.
  // Pairs with Summer::ask() and ask_giver().
  const auto say = [&] {
    if (lane == 0) store_packet(to + f.layout.answer(bank, token), answer);
  };
  if (mutant(KernelMutant::said_before_carried)) say();
#pragma unroll 1
  for (; rows != 0; rows &= rows - 1) {
    copy(f.row_lanes_in[source],
         f.layout.combine_row(bank, token * each + __ffs(static_cast<int>(rows)) - 1), packets);
  }
  copy(from, f.layout.row_weight(bank, token), f.layout.weight_packets());
  __syncwarp();
  fence_system();
  say();
}

/// What ranks of this node have answered of one token of a home: their sum, in the order of their places, rounded as it
/// travels; the routes that are in it; and, if they come, weights of routes. All of it was there before the item. By one warp.
template <int kBytes>
__device__ __forceinline__ void carry_sum(const FerryArgs& f, uint4 item, int home, int bank,
                                          int token, DType dtype, int lane) {
  constexpr int kAtOnce = kBytes == 2 ? 4 : 2;
  using Packets = Elements<kBytes, 1>;
  const window::PacketLayout& layout = f.layout;
  const std::byte* const from = f.windows[f.rank] + f.partials[home];
  std::byte* const to = f.lanes_out[home];
  const auto part = [&](int place) { return from + place * f.partial_stride; };
  const std::uint32_t tag = item.x;
  // Lane i: the i-th place.
  const bool asked = lane < kPeersMax && ((item.z >> (16 + lane)) & 1U) != 0;
  const uint4 answer = load_packet(part(asked ? lane : 0) + layout.answer(bank, token));
  const bool come = asked && (answer.x == tag || mutant(KernelMutant::stale_partials_taken));
  const std::uint32_t all = lanes_with(come);
  if (all == 0) return;
  // Calls that differ cannot be added up: home gets what is like the first.
  const std::uint32_t some = lanes_with(come && answer.y != 0);
  const std::uint32_t signature =
      __shfl_sync(~0U, answer.z, __ffs(static_cast<int>(some != 0 ? some : all)) - 1);
  const bool counts = come && answer.y != 0 && answer.z == signature;
  const std::uint32_t given = lanes_with(counts);
  const std::uint32_t routes = __reduce_or_sync(~0U, counts ? answer.y : 0U);
  const std::uint32_t rows = __reduce_or_sync(~0U, counts ? answer.w : 0U);

  const std::uint32_t slot =
      layout.combine_row(bank, token * layout.shape().combine_rows_per_token);
#pragma unroll 1
  for (int first = 0; given != 0 && first < f.hidden; first += kStepElements) {
    const int element = first + lane * kLaneElements;
    float sum[kLaneElements] = {};
#pragma unroll 1
    for (std::uint32_t left = given; left != 0;) {
      Packets packets[kAtOnce];
      bool exists[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        exists[i] = left != 0;
        if (!exists[i]) continue;
        packets[i].take(
            part(__ffs(static_cast<int>(left)) - 1) + slot + within(element, f.hidden) * kBytes,
            element, f.hidden);
        left &= left - 1;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (!exists[i]) continue;
        float v[kLaneElements];
        packets[i].floats(0, v, dtype);
#pragma unroll
        for (int e = 0; e < kLaneElements; ++e) sum[e] = sum[e] + v[e];
      }
    }
    Packets packets;
    packets.encode(0, sum, dtype);
    packets.push(f.row_lanes_out[home] + slot + element * kBytes, element, f.hidden);
  }

  if (lane < layout.weight_packets()) {
    const std::uint32_t at =
        layout.row_weight(bank, token) + static_cast<std::uint32_t>(lane) * window::kPacketBytes;
    uint4 weights = make_uint4(0, 0, 0, 0);
#pragma unroll 1
    for (int place = 0; place < kPeersMax; ++place) {
      if (((given >> place) & 1U) == 0) continue;
      const uint4 v = load_packet(part(place) + at);
      if (v.x != tag) continue;  // None were given.
      const std::uint32_t own = load_packet(part(place) + layout.answer(bank, token)).y >>
                                (lane * window::kPacketWeights);
      weights.x = tag;
      if ((own & 1U) != 0) weights.y = v.y;
      if ((own & 2U) != 0) weights.z = v.z;
      if ((own & 4U) != 0) weights.w = v.w;
    }
    if (weights.x == tag) store_packet(to + at, weights);
  }
  // Pairs with the loads of LaneView, by way of the count.
  if (lane == 0) {
    store_packet(to + layout.answer(bank, token), make_uint4(tag, routes, signature, rows));
  }
}

/// By one warp.
__device__ __forceinline__ void carry(const FerryArgs& f, uint4 item, int lane) {
  const std::uint32_t what = item.w & 15U;
  const auto word = item.x | static_cast<std::uint64_t>(item.z) << 32;
  if (what == FerryItem::kTold) {
    auto* const at = reinterpret_cast<std::uint64_t*>(lane_at(f, item, f.rank));
    if (lane != 0) return;
    // Pairs with open() of the reader. Such words only grow, and another warp may have told a later one.
    fence_system();
    if (mutant(KernelMutant::older_word_told)) return store_relaxed(at, word);
    atomicMax(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(word));
    return;
  }
  if (what == FerryItem::kSummed) {
    std::byte* const sums = f.windows[f.rank] + f.sums[static_cast<int>(item.w >> 4) & 15];
    // Pairs with ask_giver(). A bank's next one comes only when this one was read.
    if (lane == 0) store_release(reinterpret_cast<std::uint64_t*>(sums + item.y), word);
    return;
  }
  if (what == FerryItem::kAccused) {
    if (lane >= kPeersMax || ((item.z >> (16 + lane)) & 1U) == 0) return;
    // Pairs with is_accused() of the reader. Before this is counted, and so before anything is overwritten.
    store_relaxed(reinterpret_cast<std::uint64_t*>(lane_at(f, item, lane)), std::uint64_t{1});
    return;
  }
  if (what != FerryItem::kPackets && what != FerryItem::kRowPackets) {
    const auto source = static_cast<int>(item.w >> 4) & 15;
    const auto bank = static_cast<int>(item.y >> FerryItem::kTokenBits);
    const auto token = static_cast<int>(item.y & ((1U << FerryItem::kTokenBits) - 1U));
    if (what == FerryItem::kRow) return carry_row(f, item, source, bank, token, lane);
    if (what == FerryItem::kSumOfBf16) {
      return carry_sum<2>(f, item, source, bank, token, DType::bf16, lane);
    }
    if (what == FerryItem::kSumOfF16) {
      return carry_sum<2>(f, item, source, bank, token, DType::f16, lane);
    }
    if (what == FerryItem::kSumOfF32) {
      return carry_sum<4>(f, item, source, bank, token, DType::f32, lane);
    }
    std::byte* const to = f.windows[f.rank] +
                          (what == FerryItem::kSumAnswer ? f.sums[source] : f.layout.lane(source));
    return carry_answer(f, item, source, bank, token, to, lane);
  }
  copy_packets(
      (what == FerryItem::kPackets ? f.host : f.rows) + std::size_t{item.x} * window::kPacketBytes,
      static_cast<int>(item.z & 0xffffU), item.z >> 16,
      [&](int rank) { return lane_at(f, item, rank); }, lane);
}

/// How many items there are from `number` on, of 32 at most, of which lane i gets the i-th. Below zero: no more are
/// waited for. By one warp.
__device__ __forceinline__ int await_items(const FerryArgs& f, std::uint64_t number,
                                           std::uint64_t began, uint4& item, int lane) {
  const FerryItem* const ring = f.items + blockIdx.x * kFerryRing;
  const std::uint64_t own = number + static_cast<std::uint64_t>(lane);
  const std::uint64_t since = now_ns();
  for (;;) {
    // Pairs with the store in Ferry::push(); the fence is ferry_kernel's.
    item = load_packet(&ring[own % kFerryRing]);
    const std::uint64_t closing = load_relaxed(&f.state->closing);  // On its way with the item.
    const std::uint32_t missing = __ballot_sync(~0U, item.w >> 8 != FerryItem::turn(own));
    if (missing == 0) return 32;
    const int count = __ffs(static_cast<int>(missing)) - 1;
    if (count > 0) return count;
    const std::uint64_t now = now_ns();
    bool over = now - since > kFerryIdleNs || now - began > kFerryLifeNs;
    over = over || closing == f.number;
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
  for (;;) {
    if (warp == 0) {
      uint4 item;
      const int count = await_items(f, number, began, item, lane);
      items[lane] = item;
      if (lane == 0) there = count;
      // What the items speak of is read after them: with the loads of the marks this acquires. (Loads that acquire
      // would empty the L1 at every look.)
      fence_system();
    }
    __syncthreads();
    const int count = there;
    if (count < 0) break;
#pragma unroll 1
    for (int i = warp; i < count; i += kFerryWarps) carry(f, items[i], lane);
    number += static_cast<std::uint64_t>(count);
    __syncthreads();
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
  store_release(reinterpret_cast<std::uint64_t*>(f.counts + kFerryBlocks * int{window::kLineBytes}),
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
