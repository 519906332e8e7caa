// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/dispatch_padding.cuh"
#include "engine/cuda/ledger.cuh"

/// dispatch, what becomes of a source that was given up while its records came (dispatch_verdict.cuh): its rows keep
/// their numbers, are zeroed, and have no source.
namespace sluice::engine::cuda {

/// The rows of a local expert, or of all where there are no experts, that came from `source`.
struct Span {
  std::int64_t first;
  std::int64_t end;
};
/// Every `step`-th row of it.
__device__ __forceinline__ void zero_span(const DispatchArgs& a, Span span, int step, int lane) {
  if (mutant(KernelMutant::lost_rows_kept)) return;
  zero_rows(a, span.first, span.end < a.stored_rows ? span.end : a.stored_rows, step, lane);
}

__device__ __forceinline__ void mend_rows(const Receipt& r, int source, int first, int records,
                                          const std::int32_t* bases, int lane) {
  const DispatchArgs& a = r.a;
  if (r.layout == Layout::rank_major) {
    const std::int64_t end = first + records;
    zero_span(a, {first, a.capacity > 0 && end > a.capacity ? a.capacity : end}, 1, lane);
    return;
  }
#pragma unroll 1
  for (int expert = 0; expert < r.g.local_experts; ++expert) {
    const int count = await_count(r, source, expert);
    __syncwarp();
    if (count == 0) continue;
    const int before = count_rows_slowly(late_of(r), Numbers::below(source), expert);
    std::int64_t begin = expert * a.capacity;
    std::int64_t limit = begin + a.capacity;
    if (r.layout == Layout::expert_major) {
      begin = bases != nullptr ? bases[expert] : begin_slowly(late_of(r), expert);
      limit = a.capacity > 0 ? a.capacity : a.stored_rows;
    }
    __syncwarp();
    const std::int64_t end = begin + before + count;
    zero_span(a, {begin + before, end < limit ? end : limit}, 1, lane);
  }
}

/// The handle's entries of records from `first` on.
__device__ __forceinline__ void mend_records(const HandleArrays& handle, int top_k, int first,
                                             int records, int lane) {
#pragma unroll 1
  for (int at = first * top_k + lane; at < (first + records) * top_k; at += 32) {
    handle.local_ids()[at] = -1;
    handle.local_weights()[at] = 0.0F;
    handle.route_rows()[at] = Handle::kRowAbsent;
  }
#pragma unroll 1
  for (int at = first + lane; at < first + records; at += 32) {
    handle.record_rank()[at] = -1;
    handle.record_token()[at] = -1;
  }
}

/// The rows of a record of a handle.
__device__ __forceinline__ void zero_record(const DispatchArgs& a, const HandleArrays& handle,
                                            int record, int lane) {
  const int top_k = a.geometry.top_k;
#pragma unroll 1
  for (int k = 0; k < top_k; ++k) {
    const int row = handle.route_rows()[record * top_k + k];
    if (row >= 0) zero_span(a, {row, row + 1}, 1, lane);
  }
}

/// Of a cached dispatch, whose rows are its handle's.
__device__ __forceinline__ void mend_cached(const Receipt& r, int source, int lane) {
  const auto end = static_cast<int>(r.handle.source_offsets()[source + 1]);
#pragma unroll 1
  for (int record = static_cast<int>(r.handle.source_offsets()[source]); record < end; ++record) {
    if (r.handle.record_rank()[record] >= 0) zero_record(r.a, r.handle, record, lane);
  }
}

/// After all blocks have done with `source`. By one thread.
static __device__ __noinline__ void mend_report(Late late, int source, bool drop) {
  const Receipt r = receipt_of(late);
  const DispatchArgs& a = r.a;
  const std::uint32_t bit = 1U << source;
  {
    const Locked locked(&r.g.state->lock);
    if (a.handle != nullptr && !a.cached) {
      window::HandleHeader& header = *r.handle.header();
      if (!drop) store_for_host(&header.accepted.words[0], header.accepted.words[0] & ~bit);
      store_for_host(&header.report.missing.words[0], header.report.missing.words[0] | bit);
    }
    if (a.report != nullptr) {
      store_for_host(&a.report->missing.words[0], a.report->missing.words[0] | bit);
    }
  }
  add_totals(&r.g, protocol::Kind::dispatch, {}, {bit, 0, 0});
  if (source != r.g.rank) atomicOr(&r.g.state->absent, bit);
}

/// Mends what came of the sources that were given up, those that nobody else mends. By a warp that has done all else and
/// was weary. bases: or null.
static __device__ __noinline__ void mend(Late late, bool drop, const std::int32_t* bases) {
  const Receipt r = receipt_of(late);
  const DispatchArgs& a = r.a;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (int source = 0; source < r.g.ranks; ++source) {
    if (is_absent(r, source) || __any_sync(~0U, !is_closing(r, source))) continue;
    bool mine = false;
    if (lane == 0) {
      await_closed(r, source);
      mine = claim(&r.g.state->mended[r.bank][source], r.tag);
    }
    if (!__any_sync(~0U, mine)) continue;
    if (a.cached) {
      if (!drop && a.rows) mend_cached(r, source, lane);
    } else if (!drop) {
      PeerCell cell;
      cell.read(await_cell(r, source, 0), r.signature);
      const int first = record_index_slowly(late_of(r), source, 0);
      if (a.handle != nullptr) mend_records(r.handle, r.g.top_k, first, cell.records(), lane);
      if (a.rows) mend_rows(r, source, first, cell.records(), bases, lane);
    }
    __syncwarp();
    if (lane == 0) mend_report(late_of(r), source, drop);
  }
}

}  // namespace sluice::engine::cuda
