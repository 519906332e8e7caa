// SPDX-License-Identifier: MIT
//
// What kernels do that C++ has no words for. tests/gpu_simulator has a file of the same name.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

namespace sluice::engine::cuda {

#if SLUICE_KERNEL_DELAYS
/// In builds for tests: one in so many of the things that others wait for, or look at, comes up to 16 us late, with its warp
/// or a thread by itself. Drawn from the clock, so no two runs are alike.
__device__ __forceinline__ void linger(unsigned one_in) {
  unsigned clock = 0;
  unsigned lane = 0;
  asm volatile("mov.u32 %0, %clock;" : "=r"(clock));
  asm volatile("mov.u32 %0, %laneid;" : "=r"(lane));
  unsigned drawn = clock * 0x9E3779B1U;
  drawn ^= drawn >> 15;
  if ((drawn & 1) != 0) drawn = (drawn + lane) * 0x85EBCA6BU;
  if ((drawn >> 8) % one_in == 0) asm volatile("nanosleep.u32 %0;" ::"r"(drawn >> 18));
}
#else
__device__ __forceinline__ void linger(unsigned /*one_in*/) {}
#endif
inline constexpr unsigned kLingersPerStore = 64;
inline constexpr unsigned kLingersPerLoad = 512;

/// One packet, stored in one piece (single-copy atomic): who sees one of its words sees all of them.
/// Relaxed: what a packet says is in the packet, so nothing needs to be ordered with it.
__device__ __forceinline__ void store_packet(void* at, uint4 v) {
  linger(kLingersPerStore);
  const std::uint64_t low = v.x | (std::uint64_t{v.y} << 32);
  const std::uint64_t high = v.z | (std::uint64_t{v.w} << 32);
  asm volatile(
      "{ .reg .b128 q; mov.b128 q, {%1, %2}; st.relaxed.sys.global.b128 [%0], q; }" ::"l"(at),
      "l"(low), "l"(high)
      : "memory");
}

template <bool kAcquire>
__device__ __forceinline__ uint4 load_packet_as(const void* at) {
  linger(kLingersPerLoad);
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  if constexpr (kAcquire) {
    asm volatile("{ .reg .b128 q; ld.acquire.sys.global.b128 q, [%2]; mov.b128 {%0, %1}, q; }"
                 : "=l"(low), "=l"(high)
                 : "l"(at)
                 : "memory");
  } else {
    asm volatile("{ .reg .b128 q; ld.relaxed.sys.global.b128 q, [%2]; mov.b128 {%0, %1}, q; }"
                 : "=l"(low), "=l"(high)
                 : "l"(at)
                 : "memory");
  }
  return make_uint4(static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
                    static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32));
}
/// Pairs with store_packet() of a peer, or of this rank.
__device__ __forceinline__ uint4 load_packet(const void* at) {
  return load_packet_as<false>(at);
}
/// The same, and what the peer did before its fence is seen afterwards.
__device__ __forceinline__ uint4 load_packet_acquire(const void* at) {
  return load_packet_as<true>(at);
}

__device__ __forceinline__ std::uint64_t load_relaxed(const std::uint64_t* at) {
  linger(kLingersPerLoad);
  std::uint64_t value = 0;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
__device__ __forceinline__ void store_relaxed(std::uint64_t* at, std::uint64_t value) {
  linger(kLingersPerStore);
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
__device__ __forceinline__ void store_relaxed(std::uint32_t* at, std::uint32_t value) {
  linger(kLingersPerStore);
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ __forceinline__ void store_release(std::uint64_t* at, std::uint64_t value) {
  linger(kLingersPerStore);
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/// Orders what this thread, and whoever it has met at barriers, did before with what they do afterwards, for all GPUs.
__device__ __forceinline__ void fence_system() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/// The same among this GPU's threads. What of it goes on to peers, by a fence_system() of who has seen it, is ordered for them, too.
__device__ __forceinline__ void fence_device() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
/// Adds one, and says what was there: with a fence_device() before and behind.
__device__ __forceinline__ std::uint32_t count_up(std::uint32_t* at) {
  std::uint32_t before = 0;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(at) : "memory");
  return before;
}
/// An acquiring load of a word that this GPU alone writes.
__device__ __forceinline__ std::uint32_t load_acquire_device(const std::uint32_t* at) {
  std::uint32_t value = 0;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* at) {
  std::uint32_t value = 0;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ __forceinline__ std::uint64_t load_acquire(const std::uint64_t* at) {
  std::uint64_t value = 0;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
__device__ __forceinline__ void store_release(std::uint32_t* at, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

__device__ __forceinline__ uint4 load16(const void* at) {
  uint4 v;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}

/// Here and now: plain loads are moved by the compiler to where they are needed, behind others that take long, whose
/// arrival they then share.
__device__ __forceinline__ std::int32_t load_now(const std::int32_t* at) {
  std::int32_t v;
  asm volatile("ld.global.s32 %0, [%1];" : "=r"(v) : "l"(at));
  return v;
}
__device__ __forceinline__ std::int64_t load_now(const std::int64_t* at) {
  std::int64_t v;
  asm volatile("ld.global.s64 %0, [%1];" : "=l"(v) : "l"(at));
  return v;
}
__device__ __forceinline__ float load_now(const float* at) {
  float v;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(at));
  return v;
}
__device__ __forceinline__ uint4 load_now(const uint4* at) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}

/// A signal in shared memory, from one thread to the others of its block, who do not wait for each other.
/// Before a barrier of the block that comes before all use.
__device__ __forceinline__ void prepare_signal(std::uint64_t* signal) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(signal));
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at) : "memory");
}
/// Once. Release, pairs with raised().
__device__ __forceinline__ void raise(std::uint64_t* signal) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(signal));
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(at) : "memory");
}
/// Acquire.
__device__ __forceinline__ bool raised(const std::uint64_t* signal) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(signal));
  std::uint32_t is = 0;
  asm volatile(
      "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
      : "=r"(is)
      : "r"(at)
      : "memory");
  return is != 0;
}

/// Brings what lies there into the L2, which all see alike: also what may not be read yet.
__device__ __forceinline__ void prefetch(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/// Of a kernel, with __grid_constant__.
template <typename T>
using Parameter = const T;

/// cudaLaunchKernelEx, which would copy the arguments first.
template <typename... Args>
cudaError_t launch_in_place(const cudaLaunchConfig_t& config, void (*kernel)(Args...),
                            const std::type_identity_t<Args>&... args) {
  void* parameters[] = {const_cast<void*>(static_cast<const void*>(&args))...};
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), parameters);
}

/// An address in shared memory as copies take it.
using SharedAt = std::uint32_t;
/// Worked out once: from a pointer the compiler does it again for every use.
__device__ __forceinline__ SharedAt shared_at(const void* shared) {
  auto at = static_cast<SharedAt>(__cvta_generic_to_shared(shared));
  asm volatile("" : "+r"(at));
  return at;
}
__device__ __forceinline__ uint4 load_shared(SharedAt at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}

/// Copies 16 bytes to shared memory, sometime before await_copies() of the same thread.
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_async(SharedAt to, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
/// Makes a group of this thread's copies since the last one.
__device__ __forceinline__ void close_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until this thread may read what its groups have brought, but for the latest kGroups.
template <int kGroups>
__device__ __forceinline__ void await_copies_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

/// The copy engine of a multiprocessor, on Hopper and later: whole rows between global and shared memory, multiples of
/// 16 bytes at addresses of 16 bytes, each asked for by one thread. What is copied is not expected to be used again soon:
/// it leaves the L2 first.
__device__ __forceinline__ std::uint64_t evict_first() {
  std::uint64_t policy = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}
/// barrier: of 8 bytes. Before any use of it; the warp then meets.
__device__ __forceinline__ void prepare_arrival(SharedAt barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/// Into shared memory. Pairs with arrived().
__device__ __forceinline__ void bring(SharedAt to, const void* global, int bytes,
                                      SharedAt barrier) {
#if __CUDA_ARCH__ >= 900
  const std::uint64_t policy = evict_first();
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(barrier),
      "r"(bytes)
      : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], "
      "%2, [%3], %4;" ::"r"(to),
      "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
#endif
}
/// Whether the barrier's bring() of this parity (0 for the first, 1 for the second, ...) has come. Acquire.
__device__ __forceinline__ bool arrived(SharedAt barrier, unsigned parity) {
  std::uint32_t is = 1;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(is)
      : "r"(barrier), "r"(parity)
      : "memory");
#endif
  return is != 0;
}
/// Out of shared memory, of what bring() has brought.
__device__ __forceinline__ void take_out(void* global, SharedAt from, int bytes) {
#if __CUDA_ARCH__ >= 900
  const std::uint64_t policy = evict_first();
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(
          global),
      "r"(from), "r"(bytes), "l"(policy)
      : "memory");
#endif
}
/// Makes a group of this thread's take_out() since the last one.
__device__ __forceinline__ void close_group() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
/// Waits until shared memory may be written again that this thread's groups take out, but for the latest kGroups.
template <int kGroups>
__device__ __forceinline__ void await_groups_read() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory");
#endif
}
/// Waits until all that this thread's groups take out is there, for whoever is told so by this thread, or by one that has met it at
/// a barrier.
__device__ __forceinline__ void await_groups() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}
/// Orders ordinary accesses before the copies that follow.
__device__ __forceinline__ void order_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}
/// Orders ordinary accesses to shared memory before the copies of this kernel. What other kernels wrote comes before them anyhow.
__device__ __forceinline__ void begin_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// On which this thread runs.
__device__ __forceinline__ std::uint32_t multiprocessor() {
  std::uint32_t id = 0;
  asm volatile("mov.u32 %0, %smid;" : "=r"(id));
  return id;
}

__device__ __forceinline__ std::uint64_t now_ns() {
  std::uint64_t value = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
  return value;
}

/// How many polls a warp does for every look at what else has happened, 3 to 8 ms: whoever has looked is slower from then
/// on, and ranks that are alive come some 100 us after each other all the time.
inline constexpr unsigned kPollsPerLook = 16384;
/// From how many on a wait is counted.
inline constexpr unsigned kPollsCounted = 64;
/// In which every warp ends or has done far more than kPollsPerLook polls.
inline constexpr std::uint64_t kGraceNs = 100'000'000;
/// For how long a ferry that has nothing to carry looks for more; where more is expected; and how old it gets.
inline constexpr std::uint64_t kFerryIdleNs = 100'000;
inline constexpr std::uint64_t kFerryExpectsNs = 1'000'000'000;
inline constexpr std::uint64_t kFerryLifeNs = 20'000'000;

/// load_acquire_device(), beside a poll of something else.
__device__ __forceinline__ std::uint32_t glance(const std::uint32_t* at) {
  return load_acquire_device(at);
}

/// Where a test may hold up who looks whether `peer` is gone.
__device__ __forceinline__ void about_to_look(int /*peer*/) {}

/// Lets the next kernel of the stream start.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Waits until all kernels before this one have ended. Only parameters may be read earlier, and what no kernel writes.
__device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace sluice::engine::cuda
