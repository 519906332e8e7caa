// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/dispatch_mend.cuh"
#include "engine/cuda/throughput_dispatch_send.cuh"

/// dispatch in throughput mode, receive half: one block awaits the peers' cells and numbers the rows; then rows are pulled.
namespace sluice::engine::cuda {

/// The true counts, and where every source's rows of every expert begin. By a whole block.
__device__ __forceinline__ void number_experts(const Receipt& r, const Desk& desk,
                                               std::uint32_t given, Shared& shared) {
  const DispatchArgs& a = r.a;
  const Geometry& g = r.g;
  const HandleArrays& handle = r.handle;
  const bool slab = r.layout == Layout::expert_slab;
  const bool major = r.layout == Layout::expert_major;
  std::int64_t row = 0;
#pragma unroll 1
  for (int first = 0; first < g.local_experts; first += kBlockThreads) {
    const int expert = first + static_cast<int>(threadIdx.x);
    const bool exists = expert < g.local_experts;
    int count = 0;
#pragma unroll 1
    for (int source = 0; exists && source < g.ranks; ++source) {
      desk.first_rows[source * g.local_experts + expert] = count;
      if (((given >> source) & 1U) == 0) continue;
      const std::uint64_t word = load_relaxed(
          reinterpret_cast<const std::uint64_t*>(in_at(g, source, g.layout.count(r.bank, expert))));
      count += static_cast<int>(word >> 32);
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

/// Awaits the cells of all sources, decides who takes part, and numbers the rows. One block.
static __global__ void __launch_bounds__(kBlockThreads, 1)
    number_kernel(const __grid_constant__ DispatchArgs a, const __grid_constant__ Desk desk) {
  __shared__ Shared shared;
  const Geometry& g = a.geometry;
  Part part(g, protocol::Kind::dispatch, kReceiveHalf, a.timeout_ns, shared.note.block);
  const Seat& seat = part.seat;
  const int lane = seat.lane;
  const Terms terms(a);
  const bool drop = a.drop || terms.refused;
  const bool writes = !a.cached && a.handle != nullptr;
  const Receipt r = receipt_for(a, terms, shared.note);
  Arrivals& arrivals = *desk.arrivals;
  if (seat.warp == kBooksWarp) begin_header(a, writes, lane);
  if (seat.warp == 0) {
    const Arrival arrival = await_arrivals(g, protocol::CellKind::dispatch, r.bank, r.tag,
                                           r.signature, shared.note.block, a.timeout_ns, lane);
    Coming& coming = shared.coming;
    coming.missing = lanes_with(arrival.missing);
    coming.refused = lanes_with(arrival.refused);
    coming.mismatched = lanes_with(arrival.mismatched);
    std::uint32_t given =
        ((1U << g.ranks) - 1U) & ~(coming.missing | coming.refused | coming.mismatched);
    if (a.cached && !drop) {
      given &= static_cast<std::uint32_t>(r.handle.header()->accepted.words[0]);
    }
    int end = arrival.records;
#pragma unroll 1
    for (int step = 1; step < kPeersMax; step *= 2) {
      const int other = __shfl_up_sync(~0U, end, step);
      if (lane >= step) end += other;
    }
    if (lane < g.ranks) {
      coming.records[lane] = arrival.records;
      arrivals.tokens[lane] = ((given >> lane) & 1U) != 0 ? arrival.tokens : 0;
      arrivals.records[lane + 1] = end;
      const bool staged = arrival.rows.stride == 0 || mutant(KernelMutant::place_ignored);
      arrivals.rows[lane] = staged ? desk.windows[lane] + g.layout.staged_row(r.bank, 0)
                                   : desk.heaps[lane] + arrival.rows.offset;
      arrivals.stride[lane] =
          staged ? static_cast<std::int64_t>(g.layout.staged_row_stride()) : arrival.rows.stride;
    }
    if (lane == 0) {
      arrivals.records[0] = 0;
      arrivals.given = drop ? 0 : given;
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
  part.recorder.mark(Phase::wait);
  if (!a.cached && !drop) {
    number_experts(r, desk, arrivals.given, shared);
  } else if (writes) {
    write_no_rows(&a);
  }
  if (a.cached && !drop) count_cached_rows(&a);
  __syncthreads();
  if (seat.warp == 0) {
    finish_header<false>(r, shared, drop, shared.note.block.received.epoch + 1, lane);
  }
  __syncthreads();
  if (a.cached && a.handle_copy != nullptr) copy_handle(&a);
  part.recorder.mark(Phase::count);
  part.recorder.finish(Role::worker);
}

/// Lane k: the row of route k of the `record`-th record, or what the handle has for none.
__device__ __forceinline__ int place_route(const Receipt& r, const Desk& desk, int source,
                                           int local, std::uint32_t place, int record) {
  const DispatchArgs& a = r.a;
  if (local < 0) return Handle::kRowAbsent;
  if (r.layout == Layout::rank_major) return place_record(a, local, record);
  if ((place & place_word::kDuplicate) != 0) return Handle::kRowDuplicate;
  const int row = desk.first_rows[source * r.g.local_experts + local] +
                  static_cast<int>(place & place_word::kPosition);
  if (r.layout == Layout::expert_slab) {
    return row < a.capacity ? local * static_cast<int>(a.capacity) + row : Handle::kRowOverflow;
  }
  return a.capacity == 0 || row < a.capacity ? row : Handle::kRowOverflow;
}

/// The lanes whose row is written. Of rank_major one, however many routes.
__device__ __forceinline__ std::uint32_t targets_of(const Receipt& r, int row) {
  const std::uint32_t targets = lanes_with(row >= 0);
  return r.layout == Layout::rank_major ? targets & (~targets + 1) : targets;
}

/// A record's scales to those of its rows.
__device__ __forceinline__ void pull_scales(const Receipt& r, const std::byte* from, int row,
                                            int lane) {
  const DispatchArgs& a = r.a;
  const int packets = static_cast<int>(a.units_divisor.divisor) * a.scale_packets;
  std::byte* const own = row_at(a.scales, max(row, 0));
#pragma unroll 1
  for (int first = 0; first < packets; first += 32) {
    const int at = first + lane;
    uint4 packet = make_uint4(0, 0, 0, 0);
    if (at < packets) packet = load_packet(from + at * 16);
#pragma unroll 1
    for (std::uint32_t left = targets_of(r, row); left != 0; left &= left - 1) {
      std::byte* const out = pointer_of(own, __ffs(static_cast<int>(left)) - 1);
      if (at >= packets || mutant(KernelMutant::scales_not_stored)) continue;
      if (a.whole_scales) {
        store16(out + at * 16, packet);
      } else {
        store_scales(&a, out, at / a.scale_packets, at % a.scale_packets, packet);
      }
    }
  }
}

/// A source's row to its row, or rows. lost: zeros instead.
template <typename Encoder, int kSpan>
__device__ __forceinline__ void pull_row(const Receipt& r, const Desk& desk, RowCopier& copier,
                                         int source, int token, int row, bool lost, int lane) {
  const std::uint32_t targets = targets_of(r, row);
  if (targets == 0) return;
  std::byte* const from =
      const_cast<std::byte*>(desk.arrivals->rows[source]) + token * desk.arrivals->stride[source];
  // Scales are staged, wherever their rows lie.
  std::byte* const scales =
      desk.windows[source] + r.g.layout.staged_row(r.bank, token) + r.a.row_bytes;
  if (!lost && r.a.aligned && desk.ring_bytes != 0) {
    const bool takes = ((targets >> lane) & 1U) != 0;
    copier.copy(from, r.a.row_bytes, takes ? row_at(r.a.out, row) : nullptr);
    if constexpr (Encoder::kOutput == 1) pull_scales(r, scales, row, lane);
    return;
  }
  const int units = static_cast<int>(r.a.units_divisor.divisor);
#pragma unroll 1
  for (int unit = 0; unit < units; unit += kSpan) {
    Piece<Encoder, kSpan> piece(r.a, from, scales, unit, lane);
    if (lost) {
      piece.zero();
    } else {
      piece.load(r.a);
    }
    piece.store(r, row, lane);
  }
}

/// All records of a fresh dispatch: the handle's entries, and rows.
template <typename Encoder, int kSpan>
__device__ __forceinline__ void pull_records(const Receipt& r, const Desk& desk, RowCopier& copier,
                                             int place, int warps, int lane) {
  const DispatchArgs& a = r.a;
  const Geometry& g = r.g;
  const Arrivals& arrivals = *desk.arrivals;
  int most = 0;
#pragma unroll 1
  for (int source = 0; source < g.ranks; ++source) most = max(most, arrivals.tokens[source]);
#pragma unroll 1
  for (int item = place; item < most * g.ranks; item += warps) {
    const int token = item / g.ranks;
    // The ranks do not all pull from the same one.
    int source = g.rank + 1 + item - token * g.ranks;
    if (source >= g.ranks) source -= g.ranks;
    if (token >= arrivals.tokens[source]) continue;
    // Pairs with send_slice() of the source. Of a token that does not come there is an older one.
    const uint4 header =
        load_packet(in_at(g, source, g.layout.route(r.bank, token, lane < g.top_k ? lane : 0)));
    if (!__all_sync(~0U, header.x == r.tag)) continue;
    const int record =
        arrivals.records[source] + static_cast<int>(header.w >> place_word::kExpertBits);
    const bool here = lane < g.top_k && (header.z & place_word::kHere) != 0;
    const int local =
        here ? static_cast<int>(header.w & ((1U << place_word::kExpertBits) - 1U)) : -1;
    const int row = place_route(r, desk, source, local, header.z, record);
    write_record(r, record, source, token, local, __uint_as_float(header.y), row, lane);
    if (a.rows) pull_row<Encoder, kSpan>(r, desk, copier, source, token, row, false, lane);
  }
}

/// The same of a cached one.
template <typename Encoder, int kSpan>
__device__ __forceinline__ void pull_cached(const Receipt& r, const Desk& desk, RowCopier& copier,
                                            int place, int warps, int lane) {
  const Geometry& g = r.g;
  const auto records = static_cast<int>(r.handle.source_offsets()[g.ranks]);
#pragma unroll 1
  for (int record = place; record < records; record += warps) {
    const int source = r.handle.record_rank()[record];
    if (source < 0) continue;
    const int token = r.handle.record_token()[record];
    const int row =
        lane < g.top_k ? r.handle.route_rows()[record * g.top_k + lane] : Handle::kRowAbsent;
    const bool lost = ((desk.arrivals->given >> source) & 1U) == 0;
    pull_row<Encoder, kSpan>(r, desk, copier, source, token, row, lost, lane);
    if (lane == 0 && !lost && source != g.rank) {
      count_bytes(g, protocol::Kind::dispatch, std::int64_t{r.a.record_packets} * 16);
    }
  }
}

/// What was pulled of a source that had given this rank up may be anything: its rows keep their numbers, are zeroed,
/// and have no source. By a whole block, after all rows have been pulled. Rare.
static __device__ __noinline__ void mend_pulled(Late late, int source) {
  const DispatchArgs& a = *late.a;
  const HandleArrays handle{a.handle, &a.handle_layout};
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto end = static_cast<int>(handle.source_offsets()[source + 1]);
#pragma unroll 1
  for (int record = static_cast<int>(handle.source_offsets()[source] + threadIdx.x / 32);
       record < end; record += kBlockWarps) {
    if (a.rows) zero_record(a, handle, record, lane);
    __syncwarp();
    if (!a.cached) mend_records(handle, a.geometry.top_k, record, 1, lane);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  mend_report(late, source, false);
  atomicOr(&a.geometry.state->suspects, 1U << source);
}

/// Pulls the rows, and describes the records.
template <typename Encoder, int kSpan>
__global__ void __launch_bounds__(kBlockThreads, 1)
    pull_kernel(const __grid_constant__ DispatchArgs a, const __grid_constant__ Desk desk) {
  __shared__ Note note;
  __shared__ Ring ring;
  const Geometry& g = a.geometry;
  Part part(g, protocol::Kind::dispatch, kReceiveHalf, a.timeout_ns, note.block);
  const Seat& seat = part.seat;
  const int lane = seat.lane;
  const Terms terms(a);
  const Receipt r = receipt_for(a, terms, note);
  const bool drop = a.drop || terms.refused;
  if (!a.cached && a.handle != nullptr && !a.refused) {
#pragma unroll 1
    for (int at = static_cast<int>(blockIdx.x) * kBlockThreads + static_cast<int>(threadIdx.x);
         at < a.tokens * g.top_k; at += static_cast<int>(gridDim.x) * kBlockThreads) {
      r.handle.topk_ids()[at] = desk.ids[at];
      r.handle.topk_weights()[at] = desk.weights[at];
    }
  }
  if (!drop) {
    RowCopier copier(ring, throughput_memory, desk.ring_bytes, seat.warp, lane);
    if (!a.cached) {
      pull_records<Encoder, kSpan>(r, desk, copier, seat.place, seat.warps, lane);
    } else if (a.rows) {
      pull_cached<Encoder, kSpan>(r, desk, copier, seat.place, seat.warps, lane);
    }
    copier.finish();
    if (a.rows && a.zero_padding) zero_by_handle(r, seat.place, seat.warps, lane);
  }
  part.recorder.mark(Phase::place);
  if (threadIdx.x == 0) note.signature = terms.signature;  // For mend_pulled().
  if (is_last(&desk.done[Desk::kReceive])) {
#pragma unroll 1
    for (int source = 0; source < g.ranks; ++source) {
      const bool pulled = ((desk.arrivals->given >> source) & 1U) != 0 && source != g.rank;
      if (!pulled || !is_accused(g, source)) continue;
      mend_pulled({&a, &note}, source);
      __syncthreads();
    }
    if (seat.warp == 0) {
      const std::uint64_t epoch = note.block.received.epoch + 1;
      tell(g, protocol::Kind::dispatch, epoch, note.block.suspects, lane);
      if (desk.own.stride != 0) {
        await_readers(g, protocol::Kind::dispatch, epoch, suspects_by_now(g), a.timeout_ns, lane);
      }
    }
  }
  part.close_half();
}

}  // namespace sluice::engine::cuda
