// SPDX-License-Identifier: MIT
#include "early_launch.cuh"
#include "shuttle_kernel.hpp"

/// The ends of the bare way: whatever brings an operation's bytes from GPU to GPU by pinned memory of their hosts does at least this.
namespace sluice::bench {
namespace {

using namespace engine::cuda;

constexpr int kThreads = 256;
constexpr int kEach = 4;  // Units that a thread has under way.
/// What others are told by who has given up.
constexpr std::uint64_t kGaveUp = ~std::uint64_t{0};

/// This block's part of a piece.
template <typename Load, typename Store>
__device__ __forceinline__ void copy(const Shuttle::Piece& piece, const Load& load,
                                     const Store& store) {
  const std::uint64_t units = piece.bytes / Shuttle::kUnit;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * kThreads;
  for (std::uint64_t first = blockIdx.x * std::uint64_t{kThreads} + threadIdx.x; first < units;
       first += kEach * stride) {
    uint4 held[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::uint64_t at = first + static_cast<std::uint64_t>(i) * stride;
      if (at < units) held[i] = load(piece.offset + at * Shuttle::kUnit);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::uint64_t at = first + static_cast<std::uint64_t>(i) * stride;
      if (at < units) store(piece.offset + at * Shuttle::kUnit, held[i]);
    }
  }
}

/// The number of the nth piece that has come. By one thread of a block: several blocks that ask for one line of host memory are
/// served one after the other, so only the first one does.
__device__ std::uint64_t await_nth(const ShuttleArgs& args, int nth, std::uint64_t begin_ns) {
  const std::uint64_t* const at = (blockIdx.x == 0 ? args.come : args.seen) + nth;
  std::uint64_t word = 0;
  unsigned polls = 0;
  do {
    // Pairs with has_come() of the host, and with the store below.
    word = load_acquire(at);
    if (++polls % kPollsPerLook != 0 || blockIdx.x != 0) continue;
    // Pairs with ~GpuShuttle(), and with the store of a kernel before.
    if (now_ns() - begin_ns > args.give_up_ns || load_acquire(args.gave_up) != 0) word = kGaveUp;
  } while (word != kGaveUp && word / Shuttle::kPiecesMax != args.operation);
  if (blockIdx.x == 0) store_release(args.seen + nth, word);
  return word;
}

__global__ void __launch_bounds__(kThreads)
    shuttle_kernel(__grid_constant__ Parameter<ShuttleArgs> args) {
  await_previous();
  let_next_start();
  __shared__ std::uint64_t word;
  for (int i = 0; i < args.outs; ++i) {
    const Shuttle::Piece piece = args.out_pieces[i];
    copy(
        piece,
        [&](std::uint64_t at) {
          uint4 v = load_now(reinterpret_cast<const uint4*>(args.from + at));
          if (at == piece.offset) {  // So that no operation's bytes are taken for another's.
            v.x = static_cast<std::uint32_t>(args.operation);
            v.y = static_cast<std::uint32_t>(args.operation >> 32);
          }
          return v;
        },
        [&](std::uint64_t at, uint4 v) { *reinterpret_cast<uint4*>(args.out + at) = v; });
    __syncthreads();
    // Pairs with is_out() of the host.
    if (threadIdx.x == 0) {
      store_release(args.written + i * ShuttleArgs::kBlocksMax + blockIdx.x, args.operation);
    }
  }
  const std::uint64_t begin_ns = now_ns();
  for (int nth = 0; nth < args.ins; ++nth) {
    if (threadIdx.x == 0) word = await_nth(args, nth, begin_ns);
    __syncthreads();
    const std::uint64_t seen = word;
    if (seen == kGaveUp) {
      if (threadIdx.x == 0) store_release(args.gave_up, args.operation);
      return;
    }
    copy(
        args.in_pieces[seen % Shuttle::kPiecesMax],
        [&](std::uint64_t at) { return load_packet(args.in + at); },
        [&](std::uint64_t at, uint4 v) { *reinterpret_cast<uint4*>(args.to + at) = v; });
    __syncthreads();
  }
}

}  // namespace

int launch_shuttle(const ShuttleArgs& args, int blocks, void* stream) {
  return launch_early(shuttle_kernel, blocks, kThreads, stream, args);
}

}  // namespace sluice::bench
