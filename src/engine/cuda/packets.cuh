// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cuda/kernel_mutants.cuh"
#include "engine/cuda/kernels.hpp"
#include "engine/cuda/ptx.cuh"
#include "window/packet_layout.hpp"

/// The words through which ranks talk, where they lie, and small arithmetic.
namespace sluice::engine::cuda {

/// Empties a packet that was read. Ordered before the peer's next store to it by the end of this
/// kernel, then told(), then the peer's guard. `mark`: stays in it until then.
__device__ __forceinline__ void clear_packet(void* at, std::uint32_t mark = window::kPoison) {
  if (mutant(KernelMutant::packet_not_emptied)) return;
  *static_cast<uint4*>(at) = make_uint4(mark, window::kPoison, window::kPoison, window::kPoison);
}

/// The same packet with no empty look: a NaN replaced by another NaN. `nan` is two halves or one
/// float of the row's type.
__device__ __forceinline__ uint4 never_empty(uint4 v, std::uint32_t nan) {
  if (v.w == window::kPoison && !mutant(KernelMutant::poison_sent)) v.w = nan;
  return v;
}

__device__ __forceinline__ void store16(void* at, uint4 v) {
  *static_cast<uint4*>(at) = v;
}

/// Addresses in lanes. out: what this rank writes at `peer`; in: what `peer` wrote here.
__device__ __forceinline__ std::byte* out_at(const Geometry& g, int peer, std::uint32_t offset) {
  return g.lanes[peer] + offset;
}
/// Likewise a row.
__device__ __forceinline__ std::byte* row_out_at(const Geometry& g, int peer,
                                                 std::uint32_t offset) {
  return (g.published == nullptr ? g.lanes[peer] : g.state->row_lanes[peer]) + offset;
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

/// Calls work(peer, next) for two of the peers in `set` at a time, from the one after this rank on, so that
/// the ranks do not all send to the same one. next < 0: there is none.
template <typename Work>
__device__ __forceinline__ void for_each_two_peers(const Geometry& g, std::uint32_t set,
                                                   Work work) {
  const int first = g.rank + 1;
  std::uint32_t left = (set >> first | set << (g.ranks - first)) & ((1U << g.ranks) - 1U);
  const auto take = [&] {
    int peer = first + __ffs(static_cast<int>(left)) - 1;
    if (peer >= g.ranks) peer -= g.ranks;
    if (left == 0) peer = -1;
    left &= left - 1;
    return peer;
  };
#pragma unroll 1
  while (left != 0) {
    const int peer = take();
    work(peer, take());
  }
}

/// The same one by one.
template <typename Work>
__device__ __forceinline__ void for_each_peer(const Geometry& g, std::uint32_t set, Work work) {
  for_each_two_peers(g, set, [&](int peer, int next) {
    work(peer);
    if (next >= 0) work(next);
  });
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
