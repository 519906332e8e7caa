// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cuda/kernels.hpp"
#include "window/packet_layout.hpp"

/// Loads and stores of the words through which ranks talk.
namespace sluice::engine::cuda {

/// One packet, stored in one piece (single-copy atomic): who sees one of its words sees all of them.
/// Relaxed: what a packet says is in the packet, so nothing needs to be ordered with it.
__device__ __forceinline__ void store_packet(void* at, uint4 v) {
  const std::uint64_t low = v.x | (std::uint64_t{v.y} << 32);
  const std::uint64_t high = v.z | (std::uint64_t{v.w} << 32);
  asm volatile(
      "{ .reg .b128 q; mov.b128 q, {%1, %2}; st.relaxed.sys.global.b128 [%0], q; }" ::"l"(at),
      "l"(low), "l"(high)
      : "memory");
}

/// Pairs with store_packet() of a peer, or of this rank.
__device__ __forceinline__ uint4 load_packet(const void* at) {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  asm volatile("{ .reg .b128 q; ld.relaxed.sys.global.b128 q, [%2]; mov.b128 {%0, %1}, q; }"
               : "=l"(low), "=l"(high)
               : "l"(at)
               : "memory");
  return make_uint4(static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
                    static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32));
}

/// Empties a packet that was read. Ordered before the peer's next store to it by the end of this
/// kernel, then told(), then the peer's guard.
__device__ __forceinline__ void clear_packet(void* at) {
  *static_cast<uint4*>(at) =
      make_uint4(window::kPoison, window::kPoison, window::kPoison, window::kPoison);
}

/// The same packet with no empty look: a NaN replaced by another NaN. `nan` is two halves or one
/// float of the row's type.
__device__ __forceinline__ uint4 never_empty(uint4 v, std::uint32_t nan) {
  if (v.w == window::kPoison) v.w = nan;
  return v;
}

__device__ __forceinline__ std::uint64_t load_relaxed(const std::uint64_t* at) {
  std::uint64_t value = 0;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
__device__ __forceinline__ void store_relaxed(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
__device__ __forceinline__ std::uint64_t load_acquire(const std::uint64_t* at) {
  std::uint64_t value = 0;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
__device__ __forceinline__ void store_release(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* at) {
  std::uint32_t value = 0;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
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
__device__ __forceinline__ void store16(void* at, uint4 v) {
  *static_cast<uint4*>(at) = v;
}

__device__ __forceinline__ std::uint64_t now_ns() {
  std::uint64_t value = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
  return value;
}

/// Lets the next kernel of the stream start.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Waits until all kernels before this one have ended. Only parameters may be read earlier.
__device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Addresses in lanes. out: what this rank writes at `peer`; in: what `peer` wrote here.
__device__ __forceinline__ std::byte* out_at(const Geometry& g, int peer, std::uint32_t offset) {
  return g.lanes[peer] + offset;
}
__device__ __forceinline__ std::byte* in_at(const Geometry& g, int peer, std::uint32_t offset) {
  return g.window + g.layout.lane(peer) + offset;
}

/// magic * divisor exceeds 2^32 by less than the divisor, so the error of the product is below
/// value * divisor / 2^32 parts of it, less than one.
__device__ __forceinline__ int quotient(int value, Divisor by) {
  const auto v = static_cast<std::uint32_t>(value);
  return static_cast<int>(by.divisor == 1 ? v : __umulhi(v, by.magic));
}

/// Calls work(peer) for the peers in `set`, from the one after this rank on, so that the ranks do not
/// all send to the same one.
template <typename Work>
__device__ __forceinline__ void for_each_peer(const Geometry& g, std::uint32_t set, Work work) {
  const int first = g.rank + 1;
  std::uint32_t left = (set >> first | set << (g.ranks - first)) & ((1U << g.ranks) - 1U);
#pragma unroll 1
  for (; left != 0; left &= left - 1) {
    int peer = first + __ffs(static_cast<int>(left)) - 1;
    if (peer >= g.ranks) peer -= g.ranks;
    work(peer);
  }
}

/// The pointer of another lane.
__device__ __forceinline__ std::byte* pointer_of(std::byte* own, int lane) {
  return reinterpret_cast<std::byte*>(
      __shfl_sync(~0U, reinterpret_cast<unsigned long long>(own), lane));
}

struct Owner {
  int rank;
  int local;
};
__device__ __forceinline__ Owner owner_of(const Geometry& g, int expert) {
  if (g.owners != nullptr) {
    const int packed = g.owners[expert];
    return {packed >> kLocalBits, packed & ((1 << kLocalBits) - 1)};
  }
  const int rank = quotient(expert, g.experts_divisor);
  return {rank, expert - rank * static_cast<int>(g.experts_divisor.divisor)};
}

__device__ __forceinline__ std::byte* row_at(const Grid& grid, int row) {
  if (grid.slab_rows == 0) return grid.base + row * grid.row_stride;
  const int slab = row / grid.slab_rows;
  return grid.base + slab * grid.slab_stride + (row - slab * grid.slab_rows) * grid.row_stride;
}

/// Likewise for a row that may be below zero, then of no meaning. kContiguous: no gaps between slabs.
template <bool kContiguous>
__device__ __forceinline__ std::byte* row_of(const Grid& grid, int row) {
  return kContiguous ? grid.base + row * grid.row_stride : row_at(grid, max(row, 0));
}

}  // namespace sluice::engine::cuda
