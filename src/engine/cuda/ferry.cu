// SPDX-License-Identifier: MIT
#include "engine/cuda/ferry.hpp"

#include "engine/cuda/ferry_block.cuh"

/// The kernel that carries what comes outside of operations: for others of this node, and between the halves of this rank's own.
///
/// Each of its blocks carries the items of a ring, unless an operation's does (carriers.cuh). None comes for kFerryIdleNs, or the
/// launch is kFerryLifeNs old, and the host expects no more; or none comes for kFerryExpectsNs: the block says that the launch ends,
/// and ends; so do the others when they find nothing. But a block that operations have left the duty to stay lets its
/// ring go only when all their workers are counted. What is added later is carried by the next launch: the host launches it when
/// items are left and no launch is under way, or when it begins to expect some (Ferry::step()).
namespace sluice::engine::cuda {
namespace {

using Shape = FerryShape<256, 8>;

/// How long a block of this kernel stays.
class Launched {
 public:
  static constexpr bool kStays = true;

  __device__ __forceinline__ Launched(const FerryArgs& f, std::uint64_t number)
      : f_(f), number_(number), began_(now_ns()) {}

  __device__ __forceinline__ bool begin() {
    since_ = now_ns();
    idle_ = kFerryIdleNs;
    return true;
  }
  __device__ __forceinline__ void found(std::uint64_t /*closing*/) const {}
  /// The launch that ends. Pairs with the store in is_over(): a block that sees it late ends later.
  __device__ __forceinline__ std::uint64_t word() const { return load_relaxed(&f_.state->closing); }
  __device__ __forceinline__ bool is_over(std::uint64_t closing, int lane) {
    const std::uint64_t now = now_ns();
    bool over = now - since_ > kFerryExpectsNs || closing == number_;
    if (now - since_ > idle_ || now - began_ > kFerryLifeNs) {
      // The host's word is asked for once in a while: it would cross PCIe beside what it is about.
      over = over || !expects();
      idle_ += kFerryIdleNs;
      began_ = now;
    }
    if (!__any_sync(~0U, over)) return false;
    if (lane == 0) store_relaxed(&f_.state->closing, number_);
    return true;
  }

  __device__ __forceinline__ bool let_go(std::uint64_t* ring, std::uint64_t number) const {
    // Pairs with the swap in Meanwhile::leaves_duty(): what was left by then is seen below.
    const std::uint64_t word = load_acquire(ring);
    if (!mutant(KernelMutant::duty_ignored) && owes(static_cast<int>(ring - f_.state->rings))) {
      return false;
    }
    fence_device();  // Pairs with take_ring().
    return swap(ring, word, RingWord::free(number));
  }

 private:
  /// Whether a carrier of this ring has seen an operation begin of which not all workers are counted.
  __device__ __forceinline__ bool owes(int ring) const {
    constexpr int kEach = protocol::kKinds * 2;
    std::uint64_t until[kEach];
    std::uint64_t blocks[kEach];
    // Both only grow: which is looked up first makes no difference. Pairs with count_worked().
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      until[i] = load_relaxed(&f_.worked->until[i / 2][i % 2][ring]);
      blocks[i] = load_relaxed(&f_.worked->blocks[i / 2][i % 2]);
    }
    bool owes = false;
#pragma unroll
    for (int i = 0; i < kEach; ++i) owes = owes || blocks[i] < until[i];
    return owes;
  }
  /// Whether the host expects more items.
  __device__ __forceinline__ bool expects() const {
    // Pairs with the store in Ferry::expect().
    return load_relaxed(reinterpret_cast<const std::uint64_t*>(
               f_.counts + kFerryExpectsLine * int{window::kLineBytes})) != 0;
  }

  const FerryArgs& f_;
  const std::uint64_t number_;
  std::uint64_t began_;
  std::uint64_t since_ = 0;
  std::uint64_t idle_ = 0;
};

__global__ void __launch_bounds__(Shape::kThreads, 2)
    ferry_kernel(__grid_constant__ Parameter<FerryArgs> f, std::uint64_t number) {
  __shared__ FerryShared shared;
  Launched stay(f, number);
  carry_ring<Shape>(f, static_cast<int>(blockIdx.x), stay, shared);
  // By the thread that has counted: the end is told after the counts.
  if (threadIdx.x != Shape::kThreads - 1) return;
  fence_system();
  // Pairs with those of the other blocks, by the fences: who is last has seen the counts of all.
  if (atomicAdd(&f.state->ended_blocks, 1U) + 1 != gridDim.x) return;
  f.state->ended_blocks = 0;
  fence_system();
  // Pairs with the load in Ferry::step().
  store_release(
      reinterpret_cast<std::uint64_t*>(f.counts + kFerryEndedLine * int{window::kLineBytes}),
      number);
}

}  // namespace

int launch_ferry(const FerryArgs& args, std::uint64_t number, void* stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kFerryBlocks);
  config.blockDim = dim3(Shape::kThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  return cudaLaunchKernelEx(&config, ferry_kernel, args, number);
}

int load_ferry_kernel() {
  return load_kernel(ferry_kernel, 0);
}

}  // namespace sluice::engine::cuda
