// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/ferry_block.cuh"

/// Blocks of an operation that carry what comes from other nodes while its others wait for that, so that it needs no other launch:
/// CUDA launches nothing for as long as a thread of the process is in a call that waits for the GPU (docs/cuda-engine.md, "Across
/// nodes"). They are the last of the grid, Geometry::carriers of them, one for each ring. (Those that only send wait, too: for what
/// they overwrite to be read.)
///
/// Where the ferry's own kernel has a ring, the carrier leaves it the duty to stay for this operation, and goes (ferry_block.cuh).
/// Else it carries until all other blocks have done their part, which they count (Worked::blocks), and which does not depend on a
/// carrier's end. (What has been found by then is carried first; what there is besides is for others, and left to the ferry's own
/// kernel, so that this one ends however much comes.)
///
/// The count only grows. How far it will have come with a launch every carrier knows by a word of its own, which it writes for
/// itself, the next launch and who has its duty. Launches that do the same half, or all, of the same kind of operation follow one
/// another, and nobody touches that word, or counts, before await_previous(); others, which may run side by side, have other words.
namespace sluice::engine::cuda {

/// In the dynamic shared memory of the kernel, for which carriers have no other use.
struct CarrierMemory {
  FerryShared shared;
  FerryArgs args;  // Every look at host memory would empty the L1 of what lies in the GPU's.
};
static_assert(sizeof(CarrierMemory) <= kCarrierBytes && sizeof(FerryArgs) % 4 == 0);

__device__ __forceinline__ bool carries(const Geometry& g) {
  return static_cast<int>(blockIdx.x) >= worker_blocks(g);
}

/// By a whole block that does not carry, when it waits for nothing any more.
__device__ __forceinline__ void count_worked(const Geometry& g, protocol::Kind kind,
                                             bool receives) {
  if (g.carriers == 0) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  // Pairs with Meanwhile::word(), and with Launched::owes().
  std::uint64_t* const blocks = &g.state->worked.blocks[static_cast<int>(kind)][receives];
  atomicAdd(reinterpret_cast<unsigned long long*>(blocks), 1ULL);
}

/// How long a block of an operation carries: until `all` blocks are counted.
class Meanwhile {
 public:
  static constexpr bool kStays = false;

  __device__ __forceinline__ Meanwhile(const std::uint64_t* worked, std::uint64_t all)
      : worked_(worked), all_(all) {}

  __device__ __forceinline__ bool begin() const { return !over_; }
  __device__ __forceinline__ std::uint64_t word() const { return load_relaxed(worked_); }
  __device__ __forceinline__ bool is_over(std::uint64_t worked, int /*lane*/) const {
    return __any_sync(~0U, worked >= all_ || mutant(KernelMutant::nobody_carries));
  }
  __device__ __forceinline__ void found(std::uint64_t worked) { over_ = is_over(worked, 0); }
  /// By the thread that has written Worked::until.
  __device__ __forceinline__ bool leaves_duty(std::uint64_t* ring, std::uint64_t seen) const {
    if ((seen & RingWord::kStays) == 0 || mutant(KernelMutant::nobody_carries)) return false;
    fence_device();  // Until when comes first: pairs with the load in Launched::let_go().
    return swap(ring, seen, seen + RingWord::kDuty);
  }
  __device__ __forceinline__ static bool let_go(std::uint64_t* ring, std::uint64_t number) {
    store_release(ring, RingWord::free(number));  // Pairs with take_ring().
    return true;
  }

 private:
  const std::uint64_t* worked_;
  std::uint64_t all_;
  bool over_ = false;
};

/// All that a block does that carries. kRegisters: what its kernel has for a thread.
template <int kRegisters>
static __device__ __noinline__ void carry_meanwhile(const Geometry* geometry, protocol::Kind kind,
                                                    bool receives, std::byte* memory) {
  using Shape = FerryShape<kBlockThreads, kRegisters >= 128 ? 8 : 4>;
  const Geometry& g = *geometry;
  auto& own = *reinterpret_cast<CarrierMemory*>(memory);
  const auto* const from = reinterpret_cast<const std::uint32_t*>(g.state->ferry);
  auto* const to = reinterpret_cast<std::uint32_t*>(&own.args);
  for (std::size_t at = threadIdx.x; at < sizeof(FerryArgs) / 4; at += kBlockThreads) {
    to[at] = from[at];
  }
  __syncthreads();
  await_previous();
  let_next_start();  // In latency mode; as the others do: it begins when all blocks have said so.
  const int workers = worker_blocks(g);
  const int ring = static_cast<int>(blockIdx.x) - workers;
  const int k = static_cast<int>(kind);
  std::uint64_t all = 0;
  if (threadIdx.x < 32) {
    // Written by the launch before, which has ended.
    std::uint64_t* const until = &g.state->worked.until[k][receives][ring];
    all = load_relaxed(until) + static_cast<std::uint64_t>(workers);
    __syncwarp();
    if (threadIdx.x == 0) store_relaxed(until, all);
  }
  Meanwhile stay(&g.state->worked.blocks[k][receives], all);
  carry_ring<Shape>(own.args, ring, stay, own.shared);
}

}  // namespace sluice::engine::cuda
