// SPDX-License-Identifier: MIT
#include "engine/cuda/dispatch_receive.cuh"

namespace sluice::engine::cuda {
namespace {

using protocol::CellKind;
using protocol::Kind;

/// Dynamic shared memory: routes, then one integer per expert.
extern __shared__ __align__(16) std::byte shared_memory[];

/// Tokens of a rank up to which there are more warps than pieces.
constexpr int kFewTokens = 32;

/// What a block knows in shared memory.
struct Shared {
  Block block;
  std::uint32_t bad_routes;
  std::uint32_t overflow_rows;
  std::uint32_t parameters;
  std::uint32_t reached[kPeersMax * kTokenWords];
  std::int32_t positions[kBlockWarps][32];
};

/// The routing as used. By a whole block.
__device__ __forceinline__ void write_routes(const DispatchArgs& a, const Routes& routes,
                                             std::int32_t* ids, float* weights) {
#pragma unroll 1
  for (int place = static_cast<int>(threadIdx.x); place < routes.tokens << routes.shift;
       place += kBlockThreads) {
    const int token = place >> routes.shift;
    const int k = place & ((1 << routes.shift) - 1);
    if (k >= routes.top_k) continue;
    const int at = token * routes.top_k + k;
    ids[at] = expert_of(routes.ids[place]);
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

/// Whether a cached dispatch can go along its handle, which the host cannot see.
__device__ __noinline__ bool goes_along(const DispatchArgs* a) {
  const auto* header = reinterpret_cast<const window::HandleHeader*>(a->handle);
  const HandleState state = read_handle(header, a->geometry.fingerprint, a->geometry.rank);
  return state.usable && state.tokens == a->tokens &&
         state.layout == static_cast<std::uint8_t>(a->layout) && state.capacity == a->capacity &&
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

/// The true counts, and where the segments of expert_major start. By a whole block.
template <typename Encoder>
__device__ __forceinline__ void number_rows(DispatchReceiver<Encoder>& receiver,
                                            std::int32_t* bases, bool describe, Shared& shared,
                                            int lane) {
  const DispatchArgs& a = receiver.a_;
  const Geometry& g = receiver.g_;
  const HandleArrays& handle = receiver.handle_;
  const bool slab = a.layout == Layout::expert_slab;
  const bool major = a.layout == Layout::expert_major;
  receiver.cells_.await(g.ranks - 1, lane, receiver.patience_);
  const std::uint32_t senders = receiver.cells_.senders();
  std::int64_t row = 0;
#pragma unroll 1
  for (int first = 0; first < g.local_experts; first += kBlockThreads) {
    const int expert = first + static_cast<int>(threadIdx.x);
    const bool exists = expert < g.local_experts;
    const int count = exists ? receiver.count(senders, expert) : 0;
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
  if (shared.overflow_rows != 0) {
    atomicAdd_system(&g.board->totals[static_cast<int>(Kind::dispatch)].overflow_rows,
                     static_cast<unsigned long long>(shared.overflow_rows));
  }
  if (a.layout == Layout::rank_major) return;
  handle.header()->rows = major && a.capacity > 0 && row > a.capacity ? a.capacity : row;
  handle.header()->report.overflow_rows = shared.overflow_rows;
}

__device__ RankSet rank_set(std::uint32_t ranks) {
  RankSet set;
  set.words[0] = ranks;
  return set;
}

/// The handle's header and where every source's records begin, by the first warp of a block.
/// number_rows() adds to it.
template <typename Encoder>
__device__ __forceinline__ void write_header(DispatchReceiver<Encoder>& receiver,
                                             std::uint64_t epoch, int tokens,
                                             std::uint32_t bad_routes, int lane) {
  const DispatchArgs& a = receiver.a_;
  const Geometry& g = receiver.g_;
  receiver.cells_.await(g.ranks - 1, lane, receiver.patience_);
  const std::uint32_t refused = receiver.cells_.refused();
  const std::uint32_t mismatched = receiver.cells_.mismatched();
  const std::uint32_t missing = receiver.cells_.missing();
  const std::uint32_t all = (1U << g.ranks) - 1U;
#pragma unroll 1
  for (int rank = 0; rank <= g.ranks; ++rank) {
    const int before = receiver.cells_.records_before(rank, lane);
    if (lane == 0) receiver.handle_.source_offsets()[rank] = a.drop ? 0 : before;
  }
  const std::int64_t records = a.drop ? 0 : receiver.cells_.records_before(g.ranks, lane);
  if (lane != 0) return;
  window::HandleHeader& header = *receiver.handle_.header();
  header.magic = window::kHandleMagic;
  header.fingerprint = g.fingerprint;
  header.dispatch = epoch;
  header.ranks = g.ranks;
  header.rank = g.rank;
  header.top_k = g.top_k;
  header.local_experts = g.local_experts;
  header.max_tokens = a.handle_tokens;
  header.tokens = tokens;
  header.refused = a.refused || a.drop ? 1 : 0;
  header.weights_given = a.weights_given ? 1 : 0;
  header.layout = static_cast<std::uint8_t>(a.layout);
  header.alignment = a.alignment;
  header.capacity = a.capacity;
  header.records = records;
  header.accepted = rank_set(a.drop ? 0 : all & ~(refused | mismatched | missing));
  Report report;
  report.bad_routes = bad_routes;
  report.missing = rank_set(missing);
  report.refused = rank_set(refused);
  report.mismatched = rank_set(mismatched);
  header.rows = 0;
  if (a.layout == Layout::rank_major) {
    const bool limited = a.capacity > 0 && records > a.capacity;
    header.rows = limited ? a.capacity : records;
    report.overflow_rows = limited ? records - a.capacity : 0;
  }
  header.report = report;
  if (bad_routes != 0 || (missing | refused | mismatched) != 0) {
    Totals& totals = g.board->totals[static_cast<int>(Kind::dispatch)];
    if (bad_routes != 0) atomicAdd_system(&totals.bad_routes, bad_routes);
    report_cells(&totals, missing, refused, mismatched);
  }
}

/// A worker's share of what comes, kSpan units at a time.
template <int kSpan, typename Encoder>
__device__ __forceinline__ void take_records(DispatchReceiver<Encoder>& receiver, int warps,
                                             int place, const std::int32_t* bases, int lane) {
  const DispatchArgs& a = receiver.a_;
  const Geometry& g = receiver.g_;
  const bool rows = Encoder::kCommon || a.rows;
  const int units = rows ? static_cast<int>(a.units_divisor.divisor) : kSpan;
  const int slots = g.layout.shape().tokens;
  const bool same_source = warps == quotient(warps, g.ranks_divisor) * g.ranks;
  // From the other end: warps with nothing to send are the first to take.
#pragma unroll 1
  for (int task = warps - 1 - place;; task += warps) {
    const int item = quotient(task, g.ranks_divisor);
    const int slot = rows ? quotient(item * kSpan, a.units_divisor) : item;
    if (slot >= slots) break;
    int source = g.rank + task - item * g.ranks;
    if (source >= g.ranks) source -= g.ranks;
    const bool there =
        receiver.template take_units<kSpan>(source, slot, item * kSpan - slot * units, bases, lane);
    // A warp that always has the same source is done when that has no more.
    if (!there && same_source) break;
  }
}

template <typename Encoder>
__global__ void __launch_bounds__(kBlockThreads, 2)
    dispatch_kernel(const __grid_constant__ DispatchArgs a) {
  constexpr bool kCommon = Encoder::kCommon;
  __shared__ Shared shared;
  const Geometry& g = a.geometry;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Crew crew;
  const bool sends = kCommon || a.halves.send;
  const bool receives = kCommon || a.halves.receive;
  const bool cached = !kCommon && a.cached;
  const bool rows = kCommon || a.rows;
  let_next_start();
  if (threadIdx.x == kGuardWarp * 32) touch_parameters(a, &shared.parameters);
  bool refused = !kCommon && a.refused;
  if (cached && !refused) {
    await_previous();
    refused = !goes_along(&a);
  }
  const bool drop = !kCommon && (a.drop || refused);

  const int shift = route_shift(g.top_k);
  const int tokens = refused || !sends ? 0 : a.tokens;
  auto* const ids = reinterpret_cast<std::int16_t*>(shared_memory);
  const Routes routes{ids,
                      reinterpret_cast<std::uint16_t*>(ids + (tokens << shift)),
                      shared.reached,
                      tokens,
                      g.top_k,
                      shift};
  // Rows of every expert that leave here, then where those of the experts here begin.
  auto* const per_expert =
      reinterpret_cast<std::int32_t*>(shared_memory + route_bytes(tokens, shift));
  // Pieces are numbered so that neighbours are on different multiprocessors.
  const int units = static_cast<int>(a.units_divisor.divisor);
  const int warps = crew.workers * kBlockWarps;
  const int place = warp * crew.workers + static_cast<int>(blockIdx.x);
  const int send_tasks = crew.works && rows ? tokens * units : 0;
  const int first_token = quotient(place, a.units_divisor);
  const int first_unit = place - first_token * units;
  // Warp 15 - i sends the block's i-th header.
  const int header = kBlockWarps - 1 - warp;
  const int header_tokens = crew.works && !cached ? tokens : 0;
  const int own_header = static_cast<int>(blockIdx.x) + header * crew.workers;
  await_previous();

  // Everything that is needed first is asked for at once.
  RouteReader<kCommon> reader(a, tokens, shift);
  typename Encoder::Source source;
  if (place < send_tasks) {
    Encoder::load(a, row_at(a.x, first_token), first_unit, lane, source);
  }
  float weight = own_header < header_tokens ? route_weight(a, own_header, lane) : 0.0F;
  if (threadIdx.x == kEpochWarp * 32) read_epochs(g, Kind::dispatch, shared.block);
  Guard guard(g, Kind::dispatch, sends && warp == kGuardWarp ? lane : kPeersMax);
  (&shared.positions[0][0])[threadIdx.x] = 0;
  if (crew.clerk) {
    if (threadIdx.x == 0) shared.bad_routes = shared.overflow_rows = 0;
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x); at < g.experts; at += kBlockThreads) {
      per_expert[at] = 0;
    }
  }
  reader.store(routes);
  __syncthreads();
  const Block& block = shared.block;
  const Progress progress = sends ? block.sent : block.received;
  const std::uint64_t epoch = progress.epoch + 1;
  const int bank = static_cast<int>(progress.bank);
  const std::uint32_t tag = window::tag_of(epoch);
  const std::uint32_t skipped = block.suspects;

  if (sends) {
    Unit<Encoder> encoded;
    if (place < send_tasks) encoded.encode(a, source, lane);
    mark_reached(routes, g.ranks, warp, lane);
    if (crew.clerk) count_rows(routes, per_expert, &shared.bad_routes);
    guard.pass(g, epoch, skipped, a.timeout_ns);
#pragma unroll 1
    for (int first = static_cast<int>(blockIdx.x);;) {
#pragma unroll 1
      for (int i = 0, token = first; i < kBlockWarps && token < header_tokens;
           ++i, token += crew.workers) {
        count_positions(routes, token, shared.positions[i], warp, lane);
      }
      __syncthreads();
      const int token = first + header * crew.workers;
      if (token < header_tokens) {
        send_header(a, routes, token, shared.positions[header][lane], weight, bank, tag, skipped,
                    lane);
      }
      first += warps;
      if (first >= header_tokens) break;
      if (token + warps < header_tokens) weight = route_weight(a, token + warps, lane);
      shared.positions[header][lane] = 0;
      __syncthreads();
    }
    if (crew.clerk) {
      if (static_cast<int>(threadIdx.x) < g.ranks && ((skipped >> threadIdx.x) & 1U) == 0) {
        const int peer = static_cast<int>(threadIdx.x);
        send_cell(g, peer, CellKind::dispatch, bank, tag,
                  refused ? static_cast<int>(CellCode::refused) : routes.records(peer),
                  a.signature);
      }
      if (!cached && !refused) send_counts(g, per_expert, bank, tag, skipped);
      if (warp == kGuardWarp) tell(g, Kind::dispatch, block.received.epoch, skipped, lane);
    }
#pragma unroll 1
    for (int task = place; task < send_tasks;) {
      const int token = quotient(task, a.units_divisor);
      encoded.send(a, routes, token, task - token * units, bank, skipped, lane);
      task += warps;
      if (task >= send_tasks) break;
      const int next = quotient(task, a.units_divisor);
      Encoder::load(a, row_at(a.x, next), task - next * units, lane, source);
      encoded.encode(a, source, lane);
    }
  }

  if (kCommon && warp == kEpochWarp) close(g, Kind::dispatch, Halves{true, true}, block, lane);
  if (!receives && !cached && crew.clerk) {
    write_routes(a, routes, a.saved->ids, a.saved->weights);
    if (threadIdx.x == 0) a.saved->bad_routes = shared.bad_routes;
  }
  if (receives) {
    DispatchReceiver<Encoder> receiver(a, drop, tag, bank, lane);
    const bool keeper = crew.clerk && !cached;
    if (keeper) {
      const HandleArrays& handle = receiver.handle_;
      if (sends) {
        write_routes(a, routes, handle.topk_ids(), handle.topk_weights());
      } else {
        copy_routes(&a);
      }
      if (warp == 0) {
        write_header(receiver, epoch, refused ? 0 : a.tokens,
                     sends ? shared.bad_routes : a.saved->bad_routes, lane);
      }
    }
    if (!cached && !drop && (keeper || a.layout == Layout::expert_major)) {
      number_rows(receiver, per_expert, keeper, shared, lane);
    }
    if (crew.works) {
      // Few records: small pieces for many warps. Many: no more pieces than warps.
      if (kCommon && Encoder::kVectors == 1 && a.tokens > kFewTokens && units % 2 == 0) {
        take_records<2>(receiver, warps, place, per_expert, lane);
      } else {
        take_records<1>(receiver, warps, place, per_expert, lane);
      }
    }
  }
  if constexpr (!kCommon) {
    // Halves may run side by side: what a half has not done yet must not be told by the other.
    __syncthreads();
    if (warp == kEpochWarp) close(g, Kind::dispatch, Halves{sends, receives}, block, lane);
  }
}

template <bool kCommon>
auto kernel_for(const DispatchArgs& a) {
  using Kernel = void (*)(const DispatchArgs);
  const bool wide = a.x_dtype == DType::f32;
  if (a.codec.kind == CodecKind::fp8) {
    return wide ? Kernel{dispatch_kernel<Fp8Encoder<4, kCommon>>}
                : Kernel{dispatch_kernel<Fp8Encoder<2, kCommon>>};
  }
  const DType out = a.codec.kind == CodecKind::bf16  ? DType::bf16
                    : a.codec.kind == CodecKind::f16 ? DType::f16
                                                     : DType::f32;
  if (out == a.x_dtype || !a.rows) {
    return out == DType::f32 ? Kernel{dispatch_kernel<RawEncoder<4, kCommon>>}
                             : Kernel{dispatch_kernel<RawEncoder<2, kCommon>>};
  }
  return out == DType::f32 ? Kernel{dispatch_kernel<ConvertEncoder<4>>}
                           : Kernel{dispatch_kernel<ConvertEncoder<2>>};
}

/// Common calls have kernels of their own, from which all that is rare is left out.
auto kernel_for(const DispatchArgs& a) {
  const bool common = a.aligned && a.rows && a.halves.send && a.halves.receive && !a.refused &&
                      !a.cached && !a.drop && a.mask == nullptr;
  return common ? kernel_for<true>(a) : kernel_for<false>(a);
}

std::size_t shared_bytes(const DispatchArgs& a) {
  const Geometry& g = a.geometry;
  return static_cast<std::size_t>(route_bytes(a.tokens, route_shift(g.top_k))) +
         4 * static_cast<std::size_t>(g.experts > g.local_experts ? g.experts : g.local_experts);
}

}  // namespace

int launch_dispatch(const DispatchArgs& args, const Launch& launch) {
  return launch_kernel(kernel_for(args), args, launch, shared_bytes(args));
}

int load_dispatch_kernels() {
  for (const CodecKind kind : {CodecKind::bf16, CodecKind::f16, CodecKind::f32, CodecKind::fp8}) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      for (const bool aligned : {false, true}) {
        DispatchArgs args;
        args.codec.kind = kind;
        args.x_dtype = dtype;
        args.aligned = aligned;
        cudaFuncAttributes attributes;
        const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel_for(args));
        if (error != cudaSuccess) return error;
      }
    }
  }
  return cudaSuccess;
}

int dispatch_blocks_per_processor(const DispatchArgs& args) {
  return blocks_per_processor(kernel_for(args), shared_bytes(args));
}

}  // namespace sluice::engine::cuda
