// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/dispatch_describe.cuh"
#include "engine/cuda/dispatch_drain.cuh"
#include "engine/cuda/ledger.cuh"

/// dispatch, what keepers do: they write the handle. The first one numbers the rows, the others describe
/// the records (dispatch_describe.cuh); the first one also empties what nobody takes.
namespace sluice::engine::cuda {

/// What a block knows in shared memory.
struct Shared {
  Note note;
  std::uint32_t bad_routes;
  bool repeats;  // A token has several routes to one expert.
  std::uint32_t overflow_rows;
  std::int64_t rows;
  std::uint32_t parameters;
  Crew crew;
  /// Something that the whole block must know did not come in time: a block that is behind does again, slowly, all that
  /// keepers do. Set before a barrier, read after it.
  bool behind;
  /// The first record that a keeper's warp, weary since, did not describe; or below zero.
  int left[kBlockWarps];
  Coming coming;

  /// By a keeper's warp that is weary.
  __device__ __forceinline__ void leave(int warp, int record, int lane) {
    if (lane == 0) left[warp] = record;
    __syncwarp();
  }
};

/// Whether a cached dispatch can go along its handle, which the host cannot see.
static __device__ __noinline__ bool goes_along(const DispatchArgs* a) {
  const auto* header = reinterpret_cast<const window::HandleHeader*>(a->handle);
  const window::HandleBrief brief = read_brief(header);
  return brief.key == a->geometry.handle_key && static_cast<int>(brief.tokens) == a->tokens &&
         brief.layout == static_cast<std::uint32_t>(a->layout) && brief.capacity == a->capacity &&
         header->alignment == a->alignment;
}

/// The routing as used, if there is memory for it, and how many routes are bad. By a whole block.
template <bool kCommon>
__device__ __forceinline__ void keep_routes(const DispatchArgs& a, int tokens, std::int32_t* ids,
                                            float* weights, std::uint32_t* bad_routes) {
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < tokens * a.geometry.top_k;
       at += kBlockThreads) {
    const int token = quotient(at, a.geometry.top_k_divisor);
    const int k = at - token * a.geometry.top_k;
    const int id = load_route<kCommon>(a, token, k);
    if (id == kBadRoute) atomicAdd(bad_routes, 1U);
    if (!kCommon && ids == nullptr) continue;
    ids[at] = max(id, kNoRoute);
    weights[at] = route_weight(a, token, k);
  }
}

/// That of the send half, in a receive half of its own.
static __device__ __noinline__ void copy_routes(const DispatchArgs* a) {
  const HandleArrays handle{a->handle, &a->handle_layout};
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < a->tokens * a->geometry.top_k;
       at += kBlockThreads) {
    handle.topk_ids()[at] = a->saved->ids[at];
    handle.topk_weights()[at] = a->saved->weights[at];
  }
}

/// The handle of a cached dispatch in other memory, by a whole block.
static __device__ __noinline__ void copy_handle(const DispatchArgs* a) {
  const auto* const from = reinterpret_cast<const uint4*>(a->handle);
  auto* const to = reinterpret_cast<uint4*>(a->handle_copy);
  const int words = static_cast<int>(a->handle_layout.bytes / sizeof(uint4));
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < words; at += kBlockThreads) to[at] = from[at];
}

/// Of one value per thread: the sum of the threads before, and of all.
static __device__ __noinline__ int2 block_scan(int value) {
  __shared__ int sums[kBlockWarps];
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  int inclusive = value;
#pragma unroll 1
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0U, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  __syncthreads();
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  int before = 0;
  int total = 0;
#pragma unroll 1
  for (int w = 0; w < kBlockWarps; ++w) {
    if (w < warp) before += sums[w];
    total += sums[w];
  }
  return make_int2(before + inclusive - value, total);
}

/// The rows of an expert.
struct Segment {
  int aligned;  // how many there is room for
  std::int64_t begin;
};
/// Of this thread's expert, which has `count` of them. `row`: where those of the block's first begin, then behind its last.
/// By a whole block.
__device__ __forceinline__ Segment next_segment(const Receipt& r, int expert, int count,
                                                std::int64_t& row) {
  if (r.layout == Layout::expert_slab) return {count, expert * r.a.capacity};
  int aligned = count;
  const int alignment = r.layout == Layout::expert_major ? static_cast<int>(r.a.alignment) : 1;
  if (alignment != 1) aligned = (count + alignment - 1) / alignment * alignment;
  const int2 scan = block_scan(aligned);
  const Segment segment{aligned, row + scan.x};
  row += scan.y;
  return segment;
}

/// Notes the rows of an expert, whose first is `begin`, that lie beyond the capacity.
__device__ __forceinline__ void note_overflow(const Receipt& r, std::int64_t begin, int count,
                                              Shared& shared) {
  const std::int64_t capacity = r.a.capacity;
  std::int64_t overflow = 0;
  if (r.layout == Layout::expert_slab) {
    overflow = count - capacity;
  } else if (r.layout == Layout::expert_major && capacity > 0) {
    overflow = begin + count - (begin > capacity ? begin : capacity);
  }
  if (overflow > 0) atomicAdd(&shared.overflow_rows, static_cast<std::uint32_t>(overflow));
}

/// In a handle's counts meanwhile: has not come in time.
inline constexpr int kNotCounted = -1;

/// The true counts, and where the segments of expert_major start, unless the block is behind afterwards. By a whole
/// block; kSlowly: one that is.
template <bool kSlowly>
__device__ __forceinline__ void number_rows(const Receipt& r, std::int32_t* bases, bool describe,
                                            Shared& shared) {
  const DispatchArgs& a = r.a;
  const Geometry& g = r.g;
  const HandleArrays& handle = r.handle;
  const bool slab = r.layout == Layout::expert_slab;
  const bool major = r.layout == Layout::expert_major;
  std::int64_t row = 0;
  Polls polls(is_weary(r));  // Of its own: lanes wait for different things.
#pragma unroll 1
  for (int first = 0; first < g.local_experts; first += kBlockThreads) {
    const int expert = first + static_cast<int>(threadIdx.x);
    const bool exists = expert < g.local_experts;
    int count = 0;
    if constexpr (kSlowly) {
      if (exists) count = count_rows_slowly(late_of(r), g.ranks, expert);
    } else {
      if (exists) count = count_rows_from(r, g.ranks, expert, polls);
      if (polls.was_weary()) shared.behind = true;
    }
    const Segment segment = next_segment(r, expert, count, row);
    const std::int64_t begin = segment.begin;
    if (exists && major) bases[expert] = static_cast<std::int32_t>(begin);
    if (!exists || !describe) continue;
    // Statistics once: a block that is behind comes here twice, every thread for the same experts.
    const bool late = !kSlowly && polls.was_weary();
    if (kSlowly ? handle.counts()[expert] == kNotCounted : !late) count_rows(g, expert, count);
    handle.counts()[expert] = late ? kNotCounted : count;
    handle.aligned_counts()[expert] = segment.aligned;
    handle.offsets()[expert] = begin;
    note_overflow(r, begin, count, shared);
  }
  if (slab) row = g.local_experts * a.capacity;
  __syncthreads();
  if (!describe || threadIdx.x != 0) return;
  handle.offsets()[g.local_experts] = row;
  shared.rows = major && a.capacity > 0 && row > a.capacity ? a.capacity : row;
}

/// Whether who numbers rows needs the bases of number_rows(). Equal for all of a launch.
__device__ __forceinline__ bool needs_bases(const Receipt& r) {
  return r.layout == Layout::expert_major && !r.numbers;
}

/// The same where nothing is received. By a whole block.
static __device__ __noinline__ void write_no_rows(const DispatchArgs* a) {
  const HandleArrays handle{a->handle, &a->handle_layout};
  const int experts = a->geometry.local_experts;
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at <= experts; at += kBlockThreads) {
    handle.offsets()[at] = 0;
    if (at == experts) break;
    handle.counts()[at] = handle.aligned_counts()[at] = 0;
    count_rows(a->geometry, at, 0);
  }
}

/// Of a cached dispatch: the rows are its handle's. By a whole block.
static __device__ __noinline__ void count_cached_rows(const DispatchArgs* a) {
  const HandleArrays handle{a->handle, &a->handle_layout};
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < a->geometry.local_experts;
       at += kBlockThreads) {
    count_rows(a->geometry, at, handle.counts()[at]);
  }
}

/// What is known of a handle, and of a report, before anything has come. By one warp.
__device__ __forceinline__ void begin_header(const DispatchArgs& a, bool writes, int lane) {
  constexpr int kReportWords = sizeof(Report) / 8;
  static_assert(kReportWords <= 32);
  if (a.report != nullptr && lane < kReportWords) {
    reinterpret_cast<std::uint64_t*>(a.report)[lane] = 0;  // As Report() has it.
  }
  constexpr int kHeaderWords = sizeof(window::HandleHeader) / 8;
  static_assert(kHeaderWords <= 64);
  if (!writes) return;
  const auto* const from = reinterpret_cast<const std::uint64_t*>(&a.header);
  auto* const to = reinterpret_cast<std::uint64_t*>(a.handle);
#pragma unroll
  for (int at = lane; at < kHeaderWords; at += 32) to[at] = from[at];
}

/// Something to report, to all who are told, but for the totals.
static __device__ __noinline__ void tell_report(const DispatchArgs* a, Sums sums, Sets sets) {
  Report report;
  report.bad_routes = sums.bad_routes;
  report.overflow_rows = sums.overflow_rows;
  report.missing.words[0] = sets.missing;
  report.refused.words[0] = sets.refused;
  report.mismatched.words[0] = sets.mismatched;
  if (a->report != nullptr) *a->report = report;
  if (a->handle != nullptr && !a->cached) {
    reinterpret_cast<window::HandleHeader*>(a->handle)->report = report;
  }
}

/// The ranks for which the operation is being closed. By one thread.
__device__ __forceinline__ std::uint32_t closing_ranks(const Receipt& r) {
  std::uint32_t ranks = 0;
#pragma unroll 1
  for (int rank = 0; rank < r.g.ranks; ++rank) {
    if (!is_absent(r, rank) && is_closing(r, rank)) ranks |= 1U << rank;
  }
  return ranks;
}

/// The last things that a handle's header, and a report, are told. By one thread. accepts: also whose rows there are.
__device__ __forceinline__ bool finish_report(const Receipt& r, Sums sums, Sets sets, bool drop,
                                              bool accepts) {
  const std::uint32_t absent = sets.missing | sets.refused | sets.mismatched;
  if (accepts && r.a.handle != nullptr && !r.a.cached) {
    const std::uint32_t all = (1U << r.g.ranks) - 1U;
    r.handle.header()->accepted.words[0] = drop ? 0 : all & ~absent;
  }
  const bool tells = (absent | sums.bad_routes | sums.overflow_rows) != 0;
  if (tells) tell_report(&r.a, sums, sets);
  return tells;
}
/// The same in a block that was behind: others may mend, and do the same (dispatch_mend.cuh).
static __device__ __noinline__ bool finish_report_slowly(Late late, Sums sums, Sets sets,
                                                         bool drop) {
  const Receipt r = receipt_of(late);
  const Locked locked(&r.g.state->lock);
  sets.missing |= closing_ranks(r);
  return finish_report(r, sums, sets, drop, true);
}

/// Where every source's records begin, of which lane r has how many come from rank r, and what the handle's header says of
/// them. rows: but of rank_major, which has as many as there are records. By one warp. Returns how many rank_major has no
/// room for.
__device__ __forceinline__ int write_header(const Receipt& r, int records, std::int64_t rows,
                                            bool drop, std::uint64_t epoch, int lane) {
  const DispatchArgs& a = r.a;
  const Geometry& g = r.g;
  const bool writes = a.handle != nullptr && !a.cached;
#pragma unroll 1
  for (int step = 1; step < kPeersMax; step *= 2) {
    const int other = __shfl_up_sync(~0U, records, step);
    if (lane >= step) records += other;
  }
  if (lane < g.ranks && writes) r.handle.source_offsets()[lane + 1] = records;
  records = __shfl_sync(~0U, records, g.ranks - 1);
  int overflow = 0;
  if (r.layout == Layout::rank_major) {
    if (a.capacity > 0 && records > a.capacity) overflow = records - static_cast<int>(a.capacity);
    rows = records - overflow;
  }
  if (lane != 0 || !writes) return overflow;
  r.handle.source_offsets()[0] = 0;
  window::HandleHeader& header = *r.handle.header();
  header.dispatch = epoch;
  header.records = records;
  header.rows = rows;
  auto* const brief = reinterpret_cast<uint4*>(&header.brief);
  const auto dispatch = static_cast<std::uint32_t>(epoch);
  brief[0] = make_uint4(
      drop ? 0 : g.handle_key, dispatch, static_cast<std::uint32_t>(records),
      static_cast<std::uint32_t>(a.header.tokens) | static_cast<std::uint32_t>(r.layout) << 24);
  brief[1] = make_uint4(static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(rows >> 32),
                        static_cast<std::uint32_t>(a.capacity),
                        static_cast<std::uint32_t>(a.capacity >> 32));
  return overflow;
}

/// The same by a warp that does not wait for its block, where rows need not be counted; it counts the waits for all sources,
/// too. Returns whether the cells came in time.
__device__ __forceinline__ bool write_header_early(const Receipt& r, Shared& shared,
                                                   std::uint64_t epoch, int lane) {
  const Geometry& g = r.g;
  const int peer = min(lane, g.ranks - 1);
  const std::byte* const cell_at =
      in_at(g, peer, g.layout.cell(protocol::CellKind::dispatch, r.bank));
  PeerCell cell;
  cell.missing = is_absent(r, peer);
  Polls polls(is_weary(r));
  WaitClock wait;
  uint4 packet = load_packet(cell_at);  // Pairs with send_cell() of the source.
  bool come = packet.x == r.tag || cell.missing;
#pragma unroll 1
  while (!polls.was_weary() && !__all_sync(~0U, come) && !mutant(KernelMutant::any_cell_taken)) {
    (void)polls.weary();
    if (!come) wait.poll();
    packet = load_packet(cell_at);
    come = packet.x == r.tag || cell.missing;
  }
  if (lane < g.ranks) count_wait(g, peer, wait.ns());
  if (polls.was_weary()) return false;
  cell.read(packet, r.signature);
  const std::uint32_t accepted =
      lanes_with(lane < g.ranks && !cell.missing && !cell.refused && !cell.mismatched);
  const int overflow =
      write_header(r, lane < g.ranks ? cell.records() : 0,
                   static_cast<std::int64_t>(g.local_experts) * r.a.capacity, false, epoch, lane);
  if (lane != 0) return true;
  r.handle.header()->accepted.words[0] = accepted;
  if (overflow != 0) shared.overflow_rows = static_cast<std::uint32_t>(overflow);
  return true;
}

/// What there is to report, and what depends on it. overflow: rows. accepts: see finish_report(). By one thread of the
/// first keeper, after the block has met.
template <bool kSlowly>
__device__ __forceinline__ void finish_books(const Receipt& r, const Shared& shared, bool drop,
                                             std::int64_t overflow, bool accepts) {
  if (r.a.cached) overflow = drop ? 0 : r.handle.header()->report.overflow_rows;
  Sums sums{0, shared.bad_routes, static_cast<std::uint32_t>(overflow)};
  const Coming& coming = shared.coming;
  const Sets sets{coming.missing, coming.refused, coming.mismatched};
  const bool tells = kSlowly ? finish_report_slowly(late_of(r), sums, sets, drop)
                             : finish_report(r, sums, sets, drop, accepts);
  if (!tells) return;
  if (r.a.cached) sums.overflow_rows = 0;
  add_totals(&r.g, protocol::Kind::dispatch, sums, sets);
}

/// All of this by one warp, after number_rows().
template <bool kSlowly>
__device__ __forceinline__ void finish_header(const Receipt& r, const Shared& shared, bool drop,
                                              std::uint64_t epoch, int lane) {
  const int records = lane < r.g.ranks && !drop ? shared.coming.records[lane] : 0;
  const int beyond = write_header(r, records, drop ? 0 : shared.rows, drop, epoch, lane);
  const bool rank_major = r.layout == Layout::rank_major;
  if (lane == 0) {
    finish_books<kSlowly>(r, shared, drop, rank_major ? beyond : std::int64_t{shared.overflow_rows},
                          true);
  }
}

/// What keepers write: the handle. By a whole block; kSlowly: one that is behind. Returns whether this warp has left
/// something to do, for keep_slowly().
template <bool kCommon, bool kFew, bool kSlowly, bool kRecords>
__device__ __forceinline__ bool keep_books(const Receipt& r, const Crew& crew, Shared& shared,
                                           std::int32_t* bases, bool drop, std::uint64_t epoch,
                                           Recorder<kRecords>& recorder, int warp, int lane) {
  const DispatchArgs& a = r.a;
  const bool cached = !kCommon && a.cached;
  const bool numbers = !cached && !drop;
  // The first numbers rows, the others describe records.
  const bool first = crew.keeper == 0;
  const bool describes = crew.keepers == 1 || !first;
  const int above = crew.keepers == 1 ? 0 : 1;
  // There is none where there was no memory for it.
  const bool writes = !cached && (kCommon || a.handle != nullptr);
  if (!kSlowly && !kCommon && first && !cached && !a.halves.send) {
    if (writes) copy_routes(&a);
    if (threadIdx.x == 0) shared.bad_routes = a.saved->bad_routes;
  }
  const bool ahead_of_block = kCommon && !kSlowly && r.layout != Layout::expert_major;
  bool came = true;
  if (!kSlowly && first && warp == kBooksWarp) {
    begin_header(a, writes, lane);
    __syncwarp();
    if (ahead_of_block) came = write_header_early(r, shared, epoch, lane);
  }
  const int among = crew.keepers - above;
  const int step = among * kBlockWarps;
  int index = crew.keeper - above + (kBlockWarps - 1 - warp) * among;
  const bool early = kFew && describes && !needs_bases(r);
  Polls polls(!kSlowly && (is_weary(r) || !came));
  if (early && !first) {
    index = describe_early(r, index, step, polls, lane);
    recorder.mark(Phase::place);
    if (r.g.layout.shape().tokens <= window::kFirstTokens) {
      if (polls.was_weary()) shared.leave(warp, index, lane);
      return polls.was_weary();
    }
  }
  // By the last warps, while the first ones await counts.
  Coming& coming = shared.coming;
  came = read_cells<kSlowly>(r, coming, first && !ahead_of_block, kBlockWarps - 1 - warp, lane) &&
         came;
  recorder.mark(Phase::wait);
  if (numbers && (first || needs_bases(r))) {
    number_rows<kSlowly>(r, bases, first, shared);
  } else if (first && writes) {
    write_no_rows(&a);
  }
  if (early && first) index = describe_early(r, index, step, polls, lane);
  uint4 ahead = make_uint4(0, 0, 0, 0);
  if (!kSlowly && numbers && describes) ahead = header_ahead(r, index, lane);
  if (!came || polls.was_weary()) shared.behind = true;
  __syncthreads();
  if (!kSlowly && shared.behind) return true;
  recorder.mark(Phase::count);
  if (first && warp == 0) {
    if (!ahead_of_block) {
      finish_header<kSlowly>(r, shared, drop, epoch, lane);
    } else if (lane == 0) {
      finish_books<kSlowly>(r, shared, drop, shared.overflow_rows, false);
    }
  }
  if (numbers && describes) {
    const std::int32_t* const numbered = kSlowly || needs_bases(r) ? bases : nullptr;
    if constexpr (kSlowly) {
      describe_left(late_of(r), numbered, index, step);
    } else {
      index = describe_records(r, coming, numbered, index, step, ahead, polls, lane);
      if (polls.was_weary()) shared.leave(warp, index, lane);
    }
  }
  recorder.mark(Phase::place);
  // Rows that nobody takes: of all, of ranks that made another call, or that the handle does not know.
  const std::uint32_t all = (1U << r.g.ranks) - 1U;
  std::uint32_t unwanted = drop ? all : coming.mismatched;
  if (cached && !drop) {
    const auto accepted = static_cast<std::uint32_t>(r.handle.header()->accepted.words[0]);
    unwanted |= all & ~accepted & ~(coming.missing | coming.refused);
  }
  unwanted &= ~r.suspects;
  if (first && cached && !drop) count_cached_rows(&a);
  if (first && cached && a.handle_copy != nullptr) copy_handle(&a);
  if (first && unwanted != 0) drain_rows(&a, r.tag, r.bank, unwanted);
  return polls.was_weary();
}

/// What keep_books() has left, by a warp that is weary, or by a whole block that is behind. bases: memory for them;
/// numbered: they are there.
static __device__ __noinline__ void keep_slowly(Late late, Shared& shared, std::int32_t* bases,
                                                bool numbered, bool drop) {
  const Receipt r = receipt_of(late);
  const Crew crew = shared.crew;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (!shared.behind) {
    const int among = crew.keepers - (crew.keepers == 1 ? 0 : 1);
    const int first = shared.left[warp];
    if (first >= 0) describe_left(late, numbered ? bases : nullptr, first, among * kBlockWarps);
    return;
  }
  auto* const coming = reinterpret_cast<std::uint32_t*>(&shared.coming);
  if (threadIdx.x < sizeof(Coming) / 4) coming[threadIdx.x] = 0;
  if (threadIdx.x == 0) shared.overflow_rows = 0;
  __syncthreads();
  const Block& block = shared.note.block;
  const Progress progress = r.a.halves.send ? block.sent : block.received;
  Recorder<false> nobody(r.g.recording);
  Receipt in_memory = r;
  in_memory.numbers = false;  // From here on: those of before are in registers that are no more.
  (void)keep_books<false, false, true>(in_memory, crew, shared, bases, drop, progress.epoch + 1,
                                       nobody, warp, lane);
}

}  // namespace sluice::engine::cuda
