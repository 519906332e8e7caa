// SPDX-License-Identifier: MIT
#include "engine/cuda/ferry.hpp"

#include "engine/cuda/operation.cuh"

/// What an operation's kernels wait for comes in packets that say by themselves what they are, in
/// whatever order: so a ferry needs no more than to copy them. It runs beside those kernels.
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

/// By one warp.
__device__ __forceinline__ void carry(const FerryArgs& f, uint4 item, int lane) {
  if ((item.w & 15U) == FerryItem::kTold) {
    // Pairs with open() of the reader.
    if (lane == 0) {
      store_release(reinterpret_cast<std::uint64_t*>(lane_at(f, item, f.rank)),
                    item.x | static_cast<std::uint64_t>(item.z) << 32);
    }
    return;
  }
  const std::byte* const from = f.host + std::size_t{item.x} * window::kPacketBytes;
  const auto packets = static_cast<int>(item.z & 0xffffU);
  uint4 held[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = i * 32 + lane;
    if (at < packets) held[i] = load_packet(from + at * int{window::kPacketBytes});
  }
#pragma unroll 1
  for (std::uint32_t left = item.z >> 16; left != 0; left &= left - 1) {
    std::byte* const to = lane_at(f, item, __ffs(static_cast<int>(left)) - 1);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * 32 + lane;
      // Pairs with the loads of the reader, as a peer's own store does.
      if (at < packets) store_packet(to + at * int{window::kPacketBytes}, held[i]);
    }
  }
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
    const std::uint32_t missing = __ballot_sync(~0U, item.w >> 8 != FerryItem::turn(own));
    if (missing == 0) return 32;
    const int count = __ffs(static_cast<int>(missing)) - 1;
    if (count > 0) return count;
    const std::uint64_t now = now_ns();
    bool over = now - since > kFerryIdleNs || now - began > kFerryLifeNs;
    over = over || load_relaxed(&f.state->closing) == f.number;
    if (!__any_sync(~0U, over)) continue;
    if (lane == 0) store_relaxed(&f.state->closing, f.number);
    return -1;
  }
}

__global__ void __launch_bounds__(kFerryThreads, 2)
    ferry_kernel(const __grid_constant__ FerryArgs f) {
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
