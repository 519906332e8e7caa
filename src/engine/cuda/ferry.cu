// SPDX-License-Identifier: MIT
#include "engine/cuda/ferry.hpp"

#include <algorithm>

#include "engine/cuda/operation.cuh"

/// What an operation's kernels wait for comes in packets that say by themselves what they are, in
/// whatever order: so a ferry needs no more than to copy them. It runs beside those kernels.
namespace sluice::engine::cuda {
namespace {

/// Few, so that they find room beside kernels that wait: enough for 50 GB/s from host memory.
constexpr int kFerryBlocks = 16;
constexpr int kFerryThreads = 256;
constexpr int kFerryWarps = kFerryThreads / 32;
/// Packets that a lane asks for before it waits for the first.
constexpr int kAtOnce = 4;

__device__ __forceinline__ std::byte* lane_at(const FerryArgs& f, const FerryItem& item, int rank) {
  return f.windows[rank] + f.layout.lane(item.source) + item.to;
}

__device__ __forceinline__ void carry(const FerryArgs& f, const FerryItem& item, int lane) {
  const std::byte* const from = f.host + std::size_t{item.from} * window::kPacketBytes;
  const auto packets = static_cast<int>(item.extent);
#pragma unroll 1
  for (int first = 0; first < packets; first += 32 * kAtOnce) {
    uint4 held[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * 32 + lane;
      if (at < packets) held[i] = load_packet(from + at * int{window::kPacketBytes});
    }
#pragma unroll 1
    for (std::uint32_t left = item.ranks; left != 0; left &= left - 1) {
      std::byte* const to = lane_at(f, item, __ffs(static_cast<int>(left)) - 1);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + i * 32 + lane;
        // Pairs with the loads of the reader, as a peer's own store does.
        if (at < packets) store_packet(to + at * int{window::kPacketBytes}, held[i]);
      }
    }
  }
}

__global__ void __launch_bounds__(kFerryThreads) ferry_kernel(const __grid_constant__ FerryArgs f) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(blockIdx.x * kFerryWarps + threadIdx.x / 32);
#pragma unroll 1
  for (int at = warp; at < static_cast<int>(f.count);
       at += static_cast<int>(gridDim.x) * kFerryWarps) {
    const uint4 words = load_packet(&f.items[at]);
    FerryItem item;
    item.from = words.x;
    item.to = words.y;
    item.extent = words.z;
    item.ranks = static_cast<std::uint16_t>(words.w);
    item.source = static_cast<std::uint8_t>(words.w >> 16);
    item.what = static_cast<std::uint8_t>(words.w >> 24);
    if (item.what == FerryItem::kPackets) {
      carry(f, item, lane);
    } else if (lane < 16 && ((item.ranks >> lane) & 1) != 0) {
      // Pairs with open() of the reader.
      store_release(reinterpret_cast<std::uint64_t*>(lane_at(f, item, lane)),
                    item.from | static_cast<std::uint64_t>(item.extent) << 32);
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  fence_system();  // What was copied was read: it may be overwritten.
  if (atomicAdd(f.blocks, 1U) + 1 != gridDim.x) return;
  *f.blocks = 0;
  fence_system();
  store_release(f.done, f.number);  // Pairs with the load in Ferry::done().
}

}  // namespace

int launch_ferry(const FerryArgs& args, void* stream) {
  cudaLaunchConfig_t config = {};
  const int blocks = (static_cast<int>(args.count) + kFerryWarps - 1) / kFerryWarps;
  config.gridDim = dim3(static_cast<unsigned>(std::min(blocks, kFerryBlocks)));
  config.blockDim = dim3(kFerryThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  return cudaLaunchKernelEx(&config, ferry_kernel, args);
}

int load_ferry_kernel() {
  return load_kernel(ferry_kernel, 0);
}

}  // namespace sluice::engine::cuda
