// SPDX-License-Identifier: MIT
#include <algorithm>

#include "engine/cuda/dispatch_padding.cuh"
#include "engine/cuda/dispatch_receive.cuh"

namespace sluice::engine::cuda {
namespace {

using protocol::CellKind;
using protocol::Kind;

/// Dynamic shared memory: a herald's route table; later one integer per expert here, where the segments
/// of expert_major start.
extern __shared__ __align__(16) std::byte shared_memory[];

/// What a block knows in shared memory.
struct Shared {
  Block block;
  std::uint32_t bad_routes;
  bool repeats;  // A token has several routes to one expert.
  std::uint32_t overflow_rows;
  std::int64_t rows;
  std::uint32_t parameters;
  Coming coming;
};

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
__device__ __noinline__ void copy_routes(const DispatchArgs* a) {
  const HandleArrays handle{a->handle, &a->handle_layout};
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < a->tokens * a->geometry.top_k;
       at += kBlockThreads) {
    handle.topk_ids()[at] = a->saved->ids[at];
    handle.topk_weights()[at] = a->saved->weights[at];
  }
}

/// The handle of a cached dispatch in other memory, by a whole block.
__device__ __noinline__ void copy_handle(const DispatchArgs* a) {
  const auto* const from = reinterpret_cast<const uint4*>(a->handle);
  auto* const to = reinterpret_cast<uint4*>(a->handle_copy);
  const int words = static_cast<int>(a->handle_layout.bytes / sizeof(uint4));
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < words; at += kBlockThreads) to[at] = from[at];
}

/// Whether a cached dispatch can go along its handle, which the host cannot see.
__device__ __noinline__ bool goes_along(const DispatchArgs* a) {
  const auto* header = reinterpret_cast<const window::HandleHeader*>(a->handle);
  const window::HandleBrief brief = read_brief(header);
  return brief.key == a->geometry.handle_key && brief.tokens == a->tokens &&
         brief.layout == static_cast<std::uint16_t>(a->layout) && brief.capacity == a->capacity &&
         header->alignment == a->alignment;
}

/// Of one value per thread: the sum of the threads before, and of all.
__device__ __noinline__ int2 block_scan(int value) {
  __shared__ int sums[kBlockWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
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

/// Which places of the routes' walk a herald sends headers of: all but the first one, if there are
/// several, which has counts and cells to send.
struct HeaderShare {
  int index;
  int of;
  __device__ __forceinline__ explicit HeaderShare(const Crew& crew)
      : index(crew.heralds == 1 ? crew.herald : crew.herald - 1), of(max(crew.heralds - 1, 1)) {}
};

/// What heralds send. By a whole block.
template <bool kCommon>
__device__ __forceinline__ void send_heralds(const DispatchArgs& a, const RouteTable& table,
                                             const Crew& crew, const Shared& shared,
                                             const Stamp& stamp, bool refused, float weight,
                                             int warp, int lane) {
  const Geometry& g = a.geometry;
  const std::uint32_t skipped = shared.block.suspects;
  const HeaderShare share(crew);
  if (share.index >= 0 && (kCommon || !a.cached)) {
    if (table.words != 0) {
      send_headers<kCommon>(a, table, shared.repeats,
                            share.index * kBlockThreads + static_cast<int>(threadIdx.x),
                            share.of * kBlockThreads, weight, stamp, skipped);
    } else {
      send_headers_slowly<kCommon>(&a, table.masks, table.tokens, share.index * kBlockWarps,
                                   share.of * kBlockWarps, stamp, skipped);
    }
  }
  if (crew.herald != 0) return;
  // Side by side: cells by the last warps, counts by the first.
  const int peer = kBlockWarps - 1 - warp;
  if (peer < g.ranks && ((skipped >> peer) & 1U) == 0) {
    const std::uint32_t tokens = tokens_to(table, peer, lane);
    const int records = __reduce_add_sync(~0U, __popc(tokens));
    const std::uint32_t word =
        refused ? cell_word::kRefused
                : static_cast<std::uint32_t>(records | table.tokens << cell_word::kTokensShift);
    send_cell<true>(g, peer, CellKind::dispatch, stamp.bank, stamp.tag, word, stamp.signature,
                    a.rows ? a.record_packets : 0, tokens, lane);
  }
  send_counts(g, table, stamp, skipped);
}

/// The true counts, and where the segments of expert_major start. By a whole block.
__device__ __forceinline__ void number_rows(const Receipt& r, std::int32_t* bases, bool describe,
                                            Shared& shared, Patience& patience) {
  const DispatchArgs& a = r.a;
  const Geometry& g = r.g;
  const HandleArrays& handle = r.handle;
  const bool slab = a.layout == Layout::expert_slab;
  const bool major = a.layout == Layout::expert_major;
  std::int64_t row = 0;
#pragma unroll 1
  for (int first = 0; first < g.local_experts; first += kBlockThreads) {
    const int expert = first + static_cast<int>(threadIdx.x);
    const bool exists = expert < g.local_experts;
    const int count = exists ? count_rows_from(r, g.ranks, expert, patience) : 0;
    int aligned = count;
    std::int64_t begin = expert * a.capacity;
    if (!slab) {
      const int alignment = major ? static_cast<int>(a.alignment) : 1;
      if (alignment != 1) aligned = (count + alignment - 1) / alignment * alignment;
      const int2 scan = block_scan(aligned);
      begin = row + scan.x;
      row += scan.y;
    }
    if (exists && major) bases[expert] = static_cast<std::int32_t>(begin);
    if (!exists || !describe) continue;
    handle.counts()[expert] = count;
    handle.aligned_counts()[expert] = aligned;
    handle.offsets()[expert] = begin;
    std::int64_t overflow = 0;
    if (slab) {
      overflow = count - a.capacity;
    } else if (major && a.capacity > 0) {
      overflow = begin + count - (begin > a.capacity ? begin : a.capacity);
    }
    if (overflow > 0) atomicAdd(&shared.overflow_rows, static_cast<std::uint32_t>(overflow));
  }
  if (slab) row = g.local_experts * a.capacity;
  __syncthreads();
  if (!describe || threadIdx.x != 0) return;
  handle.offsets()[g.local_experts] = row;
  shared.rows = major && a.capacity > 0 && row > a.capacity ? a.capacity : row;
}

/// The same where nothing is received. By a whole block.
__device__ __noinline__ void write_no_rows(const DispatchArgs* a) {
  const HandleArrays handle{a->handle, &a->handle_layout};
  const int experts = a->geometry.local_experts;
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at <= experts; at += kBlockThreads) {
    handle.offsets()[at] = 0;
    if (at == experts) break;
    handle.counts()[at] = handle.aligned_counts()[at] = 0;
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

/// Something to report, to all who are told.
__device__ __noinline__ void tell_report(const DispatchArgs* a, const Coming* coming,
                                         std::uint32_t bad_routes, std::int64_t overflow_rows) {
  Totals& totals = a->geometry.board->totals[static_cast<int>(Kind::dispatch)];
  if (bad_routes != 0) atomicAdd_system(&totals.bad_routes, bad_routes);
  report_cells(&totals, coming->missing, coming->refused, coming->mismatched);
  if (!a->cached && overflow_rows != 0) {
    atomicAdd_system(&totals.overflow_rows, static_cast<unsigned long long>(overflow_rows));
  }
  Report report;
  report.bad_routes = bad_routes;
  report.overflow_rows = overflow_rows;
  report.missing.words[0] = coming->missing;
  report.refused.words[0] = coming->refused;
  report.mismatched.words[0] = coming->mismatched;
  if (a->report != nullptr) *a->report = report;
  if (a->handle != nullptr && !a->cached) {
    reinterpret_cast<window::HandleHeader*>(a->handle)->report = report;
  }
}

/// The rest of the handle's header, and where every source's records begin, by one warp of the first
/// keeper after number_rows().
__device__ __forceinline__ void finish_header(const Receipt& r, const Shared& shared, bool drop,
                                              std::uint64_t epoch, int lane) {
  const DispatchArgs& a = r.a;
  const Geometry& g = r.g;
  const Coming& coming = shared.coming;
  const bool writes = a.handle != nullptr && !a.cached;
  int records = lane < g.ranks && !drop ? coming.records[lane] : 0;
#pragma unroll 1
  for (int step = 1; step < kPeersMax; step *= 2) {
    const int other = __shfl_up_sync(~0U, records, step);
    if (lane >= step) records += other;
  }
  if (lane < g.ranks && writes) r.handle.source_offsets()[lane + 1] = records;
  records = __shfl_sync(~0U, records, g.ranks - 1);
  if (lane != 0) return;
  const std::uint32_t absent = coming.missing | coming.refused | coming.mismatched;
  std::int64_t rows = drop ? 0 : shared.rows;
  std::int64_t overflow = shared.overflow_rows;
  if (a.layout == Layout::rank_major) {
    const bool limited = a.capacity > 0 && records > a.capacity;
    rows = limited ? a.capacity : records;
    overflow = limited ? records - a.capacity : 0;
  }
  if (writes) {
    r.handle.source_offsets()[0] = 0;
    window::HandleHeader& header = *r.handle.header();
    header.dispatch = epoch;
    header.records = records;
    header.rows = rows;
    header.accepted.words[0] = drop ? 0 : ((1U << g.ranks) - 1U) & ~absent;
    auto* const brief = reinterpret_cast<uint4*>(&header.brief);
    const auto dispatch = static_cast<std::uint32_t>(epoch);
    brief[0] = make_uint4(
        drop ? 0 : g.handle_key, dispatch, static_cast<std::uint32_t>(records),
        static_cast<std::uint32_t>(a.header.tokens) | static_cast<std::uint32_t>(a.layout) << 16);
    brief[1] = make_uint4(static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(rows >> 32),
                          static_cast<std::uint32_t>(a.capacity),
                          static_cast<std::uint32_t>(a.capacity >> 32));
  } else if (a.cached) {
    overflow = drop ? 0 : r.handle.header()->report.overflow_rows;
  }
  if ((absent | shared.bad_routes) != 0 || overflow != 0) {
    tell_report(&a, &coming, shared.bad_routes, overflow);
  }
}

/// What keepers write: the handle. By a whole block.
template <bool kCommon>
__device__ __forceinline__ void keep_books(const Receipt& r, const Crew& crew, Shared& shared,
                                           std::int32_t* bases, bool drop, std::uint64_t epoch,
                                           int warp, int lane) {
  const DispatchArgs& a = r.a;
  const bool cached = !kCommon && a.cached;
  const bool numbers = !cached && !drop;
  // The first numbers rows, the others describe records.
  const bool first = crew.keeper == 0;
  const bool describes = crew.keepers == 1 || !first;
  const int above = crew.keepers == 1 ? 0 : 1;
  // There is none where there was no memory for it.
  const bool writes = !cached && (kCommon || a.handle != nullptr);
  if (!kCommon && first && !cached && !a.halves.send) {
    if (writes) copy_routes(&a);
    if (threadIdx.x == 0) shared.bad_routes = a.saved->bad_routes;
  }
  if (first && warp == kBooksWarp) begin_header(a, writes, lane);
  // By the last warps, while the first ones await counts.
  Coming& coming = shared.coming;
  read_cells(r, coming, kBlockWarps - 1 - warp, lane);
  Patience patience(r.g, a.timeout_ns);
  if (numbers && (first || a.layout == Layout::expert_major)) {
    number_rows(r, bases, first, shared, patience);
  } else if (first && writes) {
    write_no_rows(&a);
  }
  const int among = crew.keepers - above;
  const int index = crew.keeper - above + (kBlockWarps - 1 - warp) * among;
  uint4 ahead = make_uint4(0, 0, 0, 0);
  if (numbers && describes) ahead = header_ahead(r, index, lane);
  __syncthreads();
  if (first && warp == 0) {
    finish_header(r, shared, drop, epoch, lane);
  }
  if (numbers && describes) {
    describe_records(r, coming, bases, patience, index, among * kBlockWarps, ahead, lane);
  }
  // Rows that nobody takes: of all, of ranks that made another call, or that the handle does not know.
  const std::uint32_t all = (1U << r.g.ranks) - 1U;
  std::uint32_t unwanted = drop ? all : coming.mismatched;
  if (cached && !drop) {
    const auto accepted = static_cast<std::uint32_t>(r.handle.header()->accepted.words[0]);
    unwanted |= all & ~accepted & ~(coming.missing | coming.refused);
  }
  unwanted &= ~r.suspects;
  if (first && cached && a.handle_copy != nullptr) copy_handle(&a);
  if (first && unwanted != 0) drain_rows(&a, r.tag, r.bank, unwanted);
}

/// A worker's share of what comes.
template <int kSpan, typename Encoder>
__device__ __forceinline__ void take_records(const Receipt& r, int warps, int place,
                                             const std::int32_t* bases, int lane) {
  const DispatchArgs& a = r.a;
  const Geometry& g = r.g;
  const int units = static_cast<int>(a.units_divisor.divisor);
  Patience patience(g, a.timeout_ns);
  if (!Encoder::kCommon && a.cached) {
    const int tasks = static_cast<int>(r.handle.source_offsets()[g.ranks]) * units;
#pragma unroll 1
    for (int task = warps - 1 - place; task < tasks; task += warps) {
      const int record = quotient(task, a.units_divisor);
      take_cached<Encoder>(r, record, task - record * units, lane);
    }
    return;
  }
  int limit = g.layout.shape().tokens;
  const bool same_source = warps == quotient(warps, g.ranks_divisor) * g.ranks;
  // From the other end: warps with nothing to send are the first to take.
#pragma unroll 1
  for (int task = warps - 1 - place;; task += warps) {
    const int item = quotient(task, g.ranks_divisor);
    const int token = quotient(item * kSpan, a.units_divisor);
    if (token >= limit) break;
    int source = g.rank + task - item * g.ranks;
    if (source >= g.ranks) source -= g.ranks;
    const int tokens = take_units<kSpan, Encoder>(r, source, token, item * kSpan - token * units,
                                                  bases, patience, lane);
    if (same_source) limit = tokens;
  }
}

template <typename Encoder, int kSpan>
__global__ void __launch_bounds__(kBlockThreads, 2)
    dispatch_kernel(const __grid_constant__ DispatchArgs a) {
  constexpr bool kCommon = Encoder::kCommon;
  __shared__ Shared shared;
  const Geometry& g = a.geometry;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool sends = kCommon || a.halves.send;
  const bool receives = kCommon || a.halves.receive;
  const bool cached = !kCommon && a.cached;
  const bool rows = kCommon || a.rows;
  let_next_start();
  if (threadIdx.x == kTouchWarp * 32) touch_parameters(a, &shared.parameters);
  bool refused = !kCommon && a.refused;
  std::uint32_t signature = a.signature;
  if (cached && !refused) {
    await_previous();
    refused = !goes_along(&a);
    signature = mix(signature,
                    read_brief(reinterpret_cast<const window::HandleHeader*>(a.handle)).dispatch);
  }
  const bool drop = !kCommon && (a.drop || refused);
  const int tokens = refused || !sends ? 0 : a.tokens;
  const RouteTable table(shared_memory, g.experts, tokens, route_shift(g.top_k));
  const int places = tokens << table.shift;
  const Crew crew(1 + (places + kBlockThreads - 1) / kBlockThreads, 2 + tokens / kBlockWarps);
  auto* const bases = reinterpret_cast<std::int32_t*>(shared_memory);
  // Pieces are numbered so that neighbours are on different multiprocessors.
  const int units = static_cast<int>(a.units_divisor.divisor);
  const int warps = crew.workers * kBlockWarps;
  const int place = warp * crew.workers + crew.block;
  const int send_tasks = crew.works && rows ? tokens * units : 0;
  if (crew.herald >= 0 || crew.keeper >= 0) {
    if (threadIdx.x == 0) {
      shared.bad_routes = shared.overflow_rows = 0;
      shared.repeats = false;
    }
    auto* const coming = reinterpret_cast<std::uint32_t*>(&shared.coming);
    if (threadIdx.x < sizeof(Coming) / 4) coming[threadIdx.x] = 0;
    const int clear = crew.herald >= 0 ? table.clear_words(g.experts) : 0;
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x); at < clear; at += kBlockThreads) {
      table.notes[at] = 0;
    }
    __syncthreads();
  }
  await_previous();

  // Everything that is needed first is asked for at once.
  std::uint64_t epoch = 0;
  std::uint32_t tag = 0;
  std::uint32_t skipped = 0;
  int bank = 0;
  int task = place;
#pragma unroll 1
  for (bool opened = false;; opened = true) {
    const int token = quotient(task, a.units_divisor);
    const int unit = task - token * units;
    typename Encoder::Source source;
    int id = kNoRoute;
    if (task < send_tasks) {
      Encoder::load(a, row_of<kCommon>(a.x, token), unit, lane, source);
      id = load_route<kCommon>(a, token, lane);
    }
    if (!opened) {
      const HeaderShare share(crew);
      const int header = share.index * kBlockThreads + static_cast<int>(threadIdx.x);
      float weight = 0.0F;
      if (crew.herald >= 0 && share.index >= 0 && header < places) {
        weight = route_weight(a, header >> table.shift, header & ((1 << table.shift) - 1));
      }
      if (warp == kOpenWarp) open(g, Kind::dispatch, sends, a.timeout_ns, lane, shared.block);
      if (crew.herald >= 0) note_routes<kCommon>(a, table, &shared.repeats);
      if (crew.keeper == 0 && sends && receives && !cached) {
        const bool writes = kCommon || a.handle != nullptr;
        const HandleArrays handle{a.handle, &a.handle_layout};
        keep_routes<kCommon>(a, tokens, writes ? handle.topk_ids() : nullptr,
                             writes ? handle.topk_weights() : nullptr, &shared.bad_routes);
      }
      __syncthreads();
      const Progress progress = sends ? shared.block.sent : shared.block.received;
      epoch = progress.epoch + 1;
      bank = static_cast<int>(progress.bank);
      tag = window::tag_of(epoch);
      skipped = shared.block.suspects;
      // Before this block sends anything: a release waits for what was sent before.
      if (sends && crew.herald == 0 && warp == kOpenWarp) {
        tell(g, Kind::dispatch, shared.block.received.epoch, skipped, lane);
      }
      if (sends && crew.herald >= 0) {
        send_heralds<kCommon>(a, table, crew, shared, {tag, signature, bank}, refused, weight, warp,
                              lane);
      }
      if (kCommon && warp == kCloseWarp) {
        close(g, Kind::dispatch, Halves{true, true}, shared.block, lane);
      }
    }
    if (task >= send_tasks) break;
    Unit<Encoder> encoded;
    encoded.encode(a, source, lane);
    encoded.send(a, ranks_of(g, id) & ~skipped, token, unit, bank, lane);
    task += warps;
  }

  if (!receives && !cached && crew.herald == 0) {
    keep_routes<kCommon>(a, tokens, a.saved->ids, a.saved->weights, &shared.bad_routes);
    __syncthreads();
    if (threadIdx.x == 0) a.saved->bad_routes = shared.bad_routes;
  }
  if (receives) {
    const Receipt receipt{a, g, {a.handle, &a.handle_layout}, tag, signature, skipped, bank};
    if (crew.keeper >= 0) {
      __syncthreads();  // The route table is read no more.
      keep_books<kCommon>(receipt, crew, shared, bases, drop, epoch, warp, lane);
    } else if (crew.works && a.layout == Layout::expert_major && !cached && !drop) {
      Patience patience(g, a.timeout_ns);
      number_rows(receipt, bases, false, shared, patience);
    }
    if (crew.works && rows && !drop) {
      take_records<kSpan, Encoder>(receipt, warps, place, bases, lane);
      if (!kCommon && a.zero_padding) zero_padding(&receipt, warps, place, bases);
    }
  }
  if constexpr (!kCommon) {
    // Halves may run side by side: what this block has not done yet is not told by the other half. For
    // other blocks, that there are 2d + 1 banks must do.
    __syncthreads();
    if (warp == kCloseWarp) close(g, Kind::dispatch, Halves{sends, receives}, shared.block, lane);
  }
}

/// Common calls have kernels of their own, from which all that is rare is left out.
bool is_common(const DispatchArgs& a) {
  const bool contiguous = a.x.slab_rows == 0 && a.out.slab_rows == 0 && a.scales.slab_rows == 0;
  const bool plain_scales =
      a.whole_scales && a.codec.scale_form == ScaleForm::f32 && a.codec.group == kCommonGroup;
  return contiguous && (a.codec.kind != CodecKind::fp8 || plain_scales) && a.aligned && a.rows &&
         a.halves.send && a.halves.receive && !a.refused && !a.cached && !a.drop &&
         !a.zero_padding && a.mask == nullptr && a.x_dtype == DType::bf16;
}

/// Few tokens: small pieces for many warps. Many: fewer pieces than warps.
template <template <int, bool> typename Encoder>
auto common_kernel(bool many) {
  using Kernel = void (*)(const DispatchArgs);
  return many ? Kernel{dispatch_kernel < Encoder<2, true>,
                       Encoder<2, true>::kVectors == 1 ? 2 : 1 > }
              : Kernel{dispatch_kernel<Encoder<2, true>, 1>};
}

auto kernel_for(const DispatchArgs& a) {
  using Kernel = void (*)(const DispatchArgs);
  const bool wide = a.x_dtype == DType::f32;
  const bool many = a.many && a.units_divisor.divisor % 2 == 0;
  if (a.codec.kind == CodecKind::fp8) {
    if (is_common(a)) return common_kernel<Fp8Encoder>(many);
    return wide ? Kernel{dispatch_kernel<Fp8Encoder<4, false>, 1>}
                : Kernel{dispatch_kernel<Fp8Encoder<2, false>, 1>};
  }
  const DType out = a.codec.kind == CodecKind::bf16  ? DType::bf16
                    : a.codec.kind == CodecKind::f16 ? DType::f16
                                                     : DType::f32;
  if (out == a.x_dtype || !a.rows) {
    if (is_common(a)) return common_kernel<RawEncoder>(many);
    return out == DType::f32 ? Kernel{dispatch_kernel<RawEncoder<4, false>, 1>}
                             : Kernel{dispatch_kernel<RawEncoder<2, false>, 1>};
  }
  return out == DType::f32 ? Kernel{dispatch_kernel<ConvertEncoder<4>, 1>}
                           : Kernel{dispatch_kernel<ConvertEncoder<2>, 1>};
}

std::size_t shared_bytes(const DispatchArgs& a) {
  const Geometry& g = a.geometry;
  return static_cast<std::size_t>(
      std::max(RouteTable::bytes(g.experts, a.tokens, route_shift(g.top_k)), 4 * g.local_experts));
}

}  // namespace

int launch_dispatch(const DispatchArgs& args, const Launch& launch) {
  return launch_kernel(kernel_for(args), args, launch, shared_bytes(args));
}

int load_dispatch_kernels() {
  for (const CodecKind kind : {CodecKind::bf16, CodecKind::f16, CodecKind::f32, CodecKind::fp8}) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      for (const bool aligned : {false, true}) {
        for (const bool many : {false, true}) {
          DispatchArgs args;
          args.codec.kind = kind;
          args.x_dtype = dtype;
          args.aligned = aligned;
          args.many = many;
          args.whole_scales = true;
          args.units_divisor = Divisor(2);
          if (const int error = load_kernel(kernel_for(args)); error != cudaSuccess) return error;
        }
      }
    }
  }
  return cudaSuccess;
}

int dispatch_blocks_per_processor(const DispatchArgs& args) {
  return blocks_per_processor(kernel_for(args), shared_bytes(args));
}

}  // namespace sluice::engine::cuda
