// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/row_counts.cuh"
#include "engine/cuda/throughput_dispatch_send.cuh"

/// dispatch in throughput mode, receive half: one block awaits the peers' cells, decides whose part counts, and numbers
/// the rows, by the counts that came before the cells; from other nodes, beside them.
namespace sluice::engine::cuda {

/// The true counts, and where every source's rows of every expert begin. By a whole block.
__device__ __forceinline__ void number_experts(const Receipt& r, const Desk& desk,
                                               std::uint32_t given, Shared& shared) {
  const DispatchArgs& a = r.a;
  const Geometry& g = r.g;
  const HandleArrays& handle = r.handle;
  constexpr int kAtOnce = 4;  // sources
  const bool slab = r.layout == Layout::expert_slab;
  const bool major = r.layout == Layout::expert_major;
  std::int64_t row = 0;
#pragma unroll 1
  for (int first = 0; first < g.local_experts; first += kBlockThreads) {
    const int expert = first + static_cast<int>(threadIdx.x);
    const bool exists = expert < g.local_experts;
    int count = 0;
#pragma unroll 1
    for (int next = 0; exists && next < g.ranks; next += kAtOnce) {
      std::uint64_t words[kAtOnce] = {};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (next + i >= g.ranks || ((given >> (next + i)) & 1U) == 0) continue;
        words[i] = load_relaxed(reinterpret_cast<const std::uint64_t*>(
            in_at(g, next + i, g.layout.count(r.bank, expert))));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (next + i >= g.ranks) break;
        desk.first_rows[(next + i) * g.local_experts + expert] = count;
        count += static_cast<int>(words[i] >> 32);
      }
    }
    const Segment segment = next_segment(r, expert, count, row);
    if (!exists) continue;
#pragma unroll 1
    for (int source = 0; major && source < g.ranks; ++source) {
      desk.first_rows[source * g.local_experts + expert] +=
          static_cast<std::int32_t>(segment.begin);
    }
    count_rows(g, expert, count);
    handle.counts()[expert] = count;
    handle.aligned_counts()[expert] = segment.aligned;
    handle.offsets()[expert] = segment.begin;
    note_overflow(r, segment.begin, count, shared);
  }
  if (slab) row = g.local_experts * a.capacity;
  __syncthreads();
  if (threadIdx.x != 0) return;
  handle.offsets()[g.local_experts] = row;
  shared.rows = major && a.capacity > 0 && row > a.capacity ? a.capacity : row;
}

/// Waits for the counts of ranks of other nodes, which a ferry brings, and not before the cell. By one warp, whose lane r has
/// the cell of rank r.
__device__ __forceinline__ void await_counts(const Receipt& r, Arrival& arrival, int lane) {
  const Geometry& g = r.g;
  const bool comes = lane < g.ranks && is_far(g, lane) && !arrival.missing && !arrival.refused &&
                     !arrival.mismatched && !mutant(KernelMutant::counts_not_awaited);
  std::uint64_t began = 0;
  Patience patience(g, r.a.timeout_ns, began);
#pragma unroll 1
  for (int expert = 0; comes && expert < g.local_experts && !arrival.missing; ++expert) {
    // Pairs with carry() of the ferry.
    const auto* const at =
        reinterpret_cast<const std::uint64_t*>(in_at(g, lane, g.layout.count(r.bank, expert)));
    while (static_cast<std::uint32_t>(load_relaxed(at)) != r.tag && !arrival.missing) {
      arrival.missing = patience.spent(lane);
    }
  }
  if (arrival.missing) arrival.records = 0;
  fence_system();
  __syncwarp();
}

__device__ __forceinline__ Receipt receipt_for(const DispatchArgs& a, const Terms& terms,
                                               Note& note) {
  const Progress& progress = note.block.received;
  return {a,
          a.geometry,
          {a.handle, &a.handle_layout},
          window::tag_of(progress.epoch + 1),
          terms.signature,
          0,
          static_cast<int>(progress.bank),
          &note,
          a.layout,
          false};
}

/// Awaits the cells of all sources, decides who takes part, and numbers the rows, for all warps of the launch. By the whole block
/// that has told the peers, or by the first one.
__device__ __forceinline__ void number_rows_for_all(const Receipt& r, const Desk& desk, bool drop,
                                                    const RowCounts& row_counts, Shared& shared,
                                                    Recorder<true>& recorder, const Seat& seat) {
  const DispatchArgs& a = r.a;
  const Geometry& g = r.g;
  const int lane = seat.lane;
  const bool writes = !a.cached && a.handle != nullptr;
  Arrivals& arrivals = *desk.arrivals;
  // Where rows lie by source it is enough to know how many there are; what is counted besides is for the caller.
  const bool by_source = a.cached || r.layout == Layout::rank_major;
  // Pairs with Puller::is_numbered(). By a thread that has seen all that the others have written.
  const auto say_so = [&] {
    fence_device();
    store_relaxed(&desk.dispatch_notes->numbered, 1U);
  };
  if (seat.warp == 0) {
    const std::byte* const stage = lane < g.ranks ? desk.stages[lane] : nullptr;
    const std::byte* const heap = lane < g.ranks ? desk.heaps[lane] : nullptr;
    Arrival arrival = await_arrivals(g, protocol::CellKind::dispatch, r.bank, r.tag, r.signature,
                                     shared.note.block, a.timeout_ns, lane);
    if (g.published != nullptr && !a.cached) await_counts(r, arrival, lane);
    Coming& coming = shared.coming;
    const std::uint32_t missing = lanes_with(arrival.missing);
    const std::uint32_t refused = lanes_with(arrival.refused);
    const std::uint32_t mismatched = lanes_with(arrival.mismatched);
    std::uint32_t given = ((1U << g.ranks) - 1U) & ~(missing | refused | mismatched);
    if (a.cached && !drop) {
      given &= static_cast<std::uint32_t>(r.handle.header()->accepted.words[0]);
    }
    int end = arrival.records;
#pragma unroll 1
    for (int step = 1; step < kPeersMax; step *= 2) {
      const int other = __shfl_up_sync(~0U, end, step);
      if (lane >= step) end += other;
    }
    const bool staged = arrival.rows.stride == 0 || mutant(KernelMutant::place_ignored);
    const std::uint32_t staging = lanes_with(arrival.staging) & given;
    const std::uint32_t staged_rows = lanes_with(staged) & staging;
    if (lane < g.ranks) {
      coming.records[lane] = arrival.records;
      arrivals.tokens[lane] = ((given >> lane) & 1U) != 0 ? arrival.tokens : 0;
      arrivals.records[lane + 1] = end;
      arrivals.rows[lane] =
          staged ? stage + g.layout.staged_offset(r.bank, 0) : heap + arrival.rows.offset;
      arrivals.stride[lane] =
          staged ? static_cast<std::int64_t>(g.layout.staged_row_stride()) : arrival.rows.stride;
    }
    if (lane == 0) {
      coming.missing = missing;
      coming.refused = refused;
      coming.mismatched = mismatched;
      arrivals.records[0] = 0;
      arrivals.given = drop ? 0 : given;
      arrivals.staging = staging;
      arrivals.staged_rows = staged_rows;
    }
    __syncwarp();
    if (lane == 0) {
      if (by_source) say_so();
      shared.overflow_rows = 0;
      shared.rows = 0;
      shared.bad_routes = atomicExch(desk.bad_routes, 0U);
    }
    const bool pulls = a.rows && !a.cached && !drop && lane < g.ranks && lane != g.rank;
    if (pulls) {
      count_bytes(g, protocol::Kind::dispatch,
                  std::int64_t{arrival.records} * a.record_packets * 16);
    }
  }
  __syncthreads();
  recorder.mark(Phase::wait);
  // Not before the others know: the report may lie in the host's memory, for which a fence would wait.
  if (by_source && seat.warp == kBooksWarp) begin_header(a, writes, lane);
  if (!a.cached && !drop) {
    number_experts(r, desk, arrivals.given, shared);
  } else if (writes) {
    write_no_rows(&a);
  }
  if (a.cached && !drop) count_cached_rows(&a);
  __syncthreads();
  if (!by_source) {
    if (threadIdx.x == 32) say_so();
    if (seat.warp == kBooksWarp) begin_header(a, writes, lane);
    __syncthreads();
  }
  // No other block needs that before the last one ends.
  if (seat.warp == 0) {
    finish_header<false>(r, shared, drop, shared.note.block.received.epoch + 1, lane);
  }
  __syncthreads();
  if (a.cached && a.handle_copy != nullptr) copy_handle(&a);
  if (row_counts.out != nullptr && a.handle != nullptr) tell_row_counts(&a, &row_counts);
  recorder.mark(Phase::count);
}

}  // namespace sluice::engine::cuda
