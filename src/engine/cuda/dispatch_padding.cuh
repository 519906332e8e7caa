// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/dispatch_receive.cuh"

/// dispatch, on request: rows of the received tensor that hold nothing become zero.
namespace sluice::engine::cuda {

/// As row_at(): what holds nothing may lie behind more rows than an int counts.
__device__ __forceinline__ std::byte* far_row_at(const Grid& grid, std::int64_t row) {
  if (grid.slab_rows == 0) return grid.base + row * grid.row_stride;
  const std::int64_t slab = row / grid.slab_rows;
  return grid.base + slab * grid.slab_stride + (row - slab * grid.slab_rows) * grid.row_stride;
}

/// Rows from `first` on, every `step`-th, up to `end`. By one warp.
__device__ __forceinline__ void zero_rows(const DispatchArgs& a, std::int64_t first,
                                          std::int64_t end, int step, int lane) {
  if (mutant(KernelMutant::padding_kept)) return;
#pragma unroll 1
  for (std::int64_t row = first; row < end; row += step) {
    std::byte* const out = far_row_at(a.out, row);
    const int piece = a.aligned ? 16 : 1;
#pragma unroll 1
    for (int byte = lane * piece; byte < a.row_bytes; byte += 32 * piece) {
      if (a.aligned) {
        store16(out + byte, make_uint4(0, 0, 0, 0));
      } else {
        out[byte] = std::byte{0};
      }
    }
    if (a.scale_words == 0) continue;
    std::byte* const scales = far_row_at(a.scales, row);
#pragma unroll 1
    for (int word = lane; word < a.scale_words; word += 32) {
      *reinterpret_cast<std::uint32_t*>(scales + word * a.scales.element_stride) = 0;
    }
  }
}

/// By the counts and offsets of a handle, and by the rows of rank_major: warp `place` of `warps`.
__device__ __forceinline__ void zero_by_handle(const Receipt& r, std::int64_t rows, int place,
                                               int warps, int lane) {
  const DispatchArgs& a = r.a;
  const Geometry& g = r.g;
  if (r.layout == Layout::rank_major) {
    return zero_rows(a, rows + place, a.stored_rows, warps, lane);
  }
  const bool slab = r.layout == Layout::expert_slab;
#pragma unroll 1
  for (int expert = 0; expert < g.local_experts; ++expert) {
    const std::int64_t begin = r.handle.offsets()[expert];
    std::int64_t end = slab ? begin + a.capacity : r.handle.offsets()[expert + 1];
    if (!slab && expert + 1 == g.local_experts) end = a.stored_rows;
    zero_rows(a, begin + r.handle.counts()[expert] + place, min(end, a.stored_rows), warps, lane);
  }
  const std::int64_t most = slab ? g.local_experts * a.capacity : a.capacity;
  if (a.capacity > 0 || g.local_experts == 0) {
    zero_rows(a, (g.local_experts == 0 ? 0 : most) + place, a.stored_rows, warps, lane);
  }
}

/// By the workers, who know as much as those who number the rows: warp `place` of `warps`. bases: where
/// the segments of expert_major start.
static __device__ __noinline__ void zero_padding(Late late, int warps, int place,
                                                 const std::int32_t* bases) {
  const Receipt r = receipt_of(late);
  const DispatchArgs& a = r.a;
  const Geometry& g = r.g;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool slab = r.layout == Layout::expert_slab;
  if (a.cached) return zero_by_handle(r, r.handle.header()->rows, place, warps, lane);
  Polls polls(is_weary(r));
  if (r.layout == Layout::rank_major) {
    int records = -1;
    if (!polls.was_weary()) {
      records = record_index(&a, r.tag, r.signature, r.suspects, r.bank, g.ranks, 0);
    }
    std::int64_t rows = records >= 0 ? records : record_index_slowly(late, g.ranks, 0);
    if (a.capacity > 0 && rows > a.capacity) rows = a.capacity;
    zero_rows(a, rows + place, a.stored_rows, warps, lane);
    return;
  }
  // Experts in turn, each by as many warps as there are for it.
  const int parts = (warps + g.local_experts - 1) / max(g.local_experts, 1);
#pragma unroll 1
  for (int task = place; task < g.local_experts * parts; task += warps) {
    const int part = task / g.local_experts;
    const int expert = task - part * g.local_experts;
    std::int64_t begin = expert * a.capacity;
    std::int64_t end = begin + a.capacity;
    std::int64_t count = count_rows_from(r, g.ranks, expert, polls);
    if (polls.was_weary()) count = count_rows_slowly(late, g.ranks, expert);
    __syncwarp();
    if (!slab) {
      const bool last = expert + 1 == g.local_experts;
      begin = bases[expert];
      end = last ? a.stored_rows : bases[expert + 1];
    }
    zero_rows(a, begin + count + part, end < a.stored_rows ? end : a.stored_rows, parts, lane);
  }
  // What lies behind the capacity, or is all there is where this rank owns no expert.
  if (a.capacity > 0 || g.local_experts == 0) {
    const std::int64_t most = slab ? g.local_experts * a.capacity : a.capacity;
    zero_rows(a, (g.local_experts == 0 ? 0 : most) + place, a.stored_rows, warps, lane);
  }
}

}  // namespace sluice::engine::cuda
