// SPDX-License-Identifier: MIT
#include "engine/cuda/dispatch_receive.cuh"
#include "engine/cuda/dispatch_send.cuh"

namespace sluice::engine::cuda {
namespace {

using protocol::CellKind;
using protocol::Kind;

/// Dynamic shared memory: routes, then one integer per expert.
extern __shared__ __align__(16) std::byte shared_memory[];

/// The routing as used. By a whole block.
__device__ void write_routes(const DispatchArgs& a, const Routes& routes, std::int32_t* ids,
                             float* weights) {
  const int total = routes.tokens * routes.top_k;
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < total; at += kBlockThreads) {
    ids[at] = expert_of(routes.ids[at]);
    const int token = quotient(at, a.geometry.top_k_divisor);
    const int k = at - token * routes.top_k;
    weights[at] = a.weights == nullptr
                      ? 1.0F
                      : a.weights[token * a.weights_stride[0] + k * a.weights_stride[1]];
  }
}

/// That of the send half, in a receive half of its own.
__device__ void copy_routes(const DispatchArgs& a, const HandleArrays& handle) {
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < a.tokens * a.geometry.top_k;
       at += kBlockThreads) {
    handle.topk_ids()[at] = a.saved->ids[at];
    handle.topk_weights()[at] = a.saved->weights[at];
  }
}

/// Sum over the block of one value per thread, and the sum of the threads before.
__device__ int block_scan(int value, int& total) {
  __shared__ int sums[kBlockWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int inclusive = value;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0U, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  __syncthreads();
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < kBlockWarps; ++w) {
    if (w < warp) before += sums[w];
    total += sums[w];
  }
  return before + inclusive - value;
}

/// The true counts, and where the segments of expert_major start. By a whole block.
__device__ void number_rows(DispatchReceiver& receiver, std::int32_t* bases, bool describe,
                            int lane) {
  const DispatchArgs& a = receiver.a_;
  const Geometry& g = receiver.g_;
  const HandleArrays& handle = receiver.handle_;
  receiver.cells_.await(g.ranks - 1, lane, receiver.patience_);
  const std::uint32_t senders = receiver.cells_.senders();
  std::int64_t row = 0;
#pragma unroll 1
  for (int first = 0; first < g.local_experts; first += kBlockThreads) {
    const int expert = first + static_cast<int>(threadIdx.x);
    const bool exists = expert < g.local_experts;
    const int count = exists ? receiver.count(senders, expert) : 0;
    const std::int64_t alignment = a.layout == Layout::expert_major ? a.alignment : 1;
    const int aligned = static_cast<int>((count + alignment - 1) / alignment * alignment);
    const int extent = a.layout == Layout::expert_slab ? static_cast<int>(a.capacity) : aligned;
    int total = 0;
    const std::int64_t begin = row + block_scan(exists ? extent : 0, total);
    if (exists) bases[expert] = static_cast<std::int32_t>(begin);
    if (exists && describe) {
      handle.counts()[expert] = count;
      handle.aligned_counts()[expert] = aligned;
      handle.offsets()[expert] = begin;
      std::int64_t overflow = 0;
      if (a.layout == Layout::expert_slab) {
        overflow = count > a.capacity ? count - a.capacity : 0;
      } else if (a.layout == Layout::expert_major && a.capacity > 0) {
        const std::int64_t end = begin + count;
        const std::int64_t beyond = begin > a.capacity ? begin : a.capacity;
        overflow = end > beyond ? end - beyond : 0;
      }
      if (overflow > 0) {
        atomicAdd(reinterpret_cast<unsigned long long*>(&handle.header()->report.overflow_rows),
                  static_cast<unsigned long long>(overflow));
      }
    }
    row += total;
  }
  if (describe && threadIdx.x == 0) {
    handle.offsets()[g.local_experts] = row;
    if (a.layout == Layout::expert_slab) {
      handle.header()->rows = row;
    } else if (a.layout == Layout::expert_major) {
      handle.header()->rows = a.capacity > 0 && row > a.capacity ? a.capacity : row;
    }
  }
}

__device__ RankSet rank_set(std::uint32_t ranks) {
  RankSet set;
  set.words[0] = ranks;
  return set;
}

/// The handle's header and where every source's records begin, by one warp.
__device__ void write_header(DispatchReceiver& receiver, std::uint64_t epoch, int tokens,
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

/// Whether a cached dispatch can go along its handle, which the host cannot see.
__device__ __noinline__ bool goes_along(const DispatchArgs& a) {
  const auto* header = reinterpret_cast<const window::HandleHeader*>(a.handle);
  const HandleState state = read_handle(header, a.geometry.fingerprint, a.geometry.rank);
  return state.usable && state.tokens == a.tokens &&
         state.layout == static_cast<std::uint8_t>(a.layout) && state.capacity == a.capacity &&
         header->alignment == a.alignment;
}

template <typename Encoder>
__global__ void __launch_bounds__(kBlockThreads, 2)
    dispatch_kernel(const __grid_constant__ DispatchArgs a) {
  __shared__ Block block;
  __shared__ std::uint32_t bad_routes;
  __shared__ std::uint32_t reached[kPeersMax * kTokenWords];
  const Geometry& g = a.geometry;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(gridDim.x) * kBlockWarps;
  const bool last_block = blockIdx.x == gridDim.x - 1;
  const int units = static_cast<int>(a.units_divisor.divisor);
  overlap_neighbours();

  const bool refused = a.refused || (a.cached && !goes_along(a));
  const bool drop = a.drop || refused;

  // Everything that is needed first is asked for at once.
  const int ids_bytes = route_bytes(a.halves.send ? a.tokens : 0, g.top_k);
  const Routes routes{reinterpret_cast<std::int16_t*>(shared_memory),
                      reinterpret_cast<std::int16_t*>(shared_memory + ids_bytes),
                      reached,
                      &bad_routes,
                      refused || !a.halves.send ? 0 : a.tokens,
                      g.top_k};
  auto* const per_expert = reinterpret_cast<std::int32_t*>(shared_memory + 2 * ids_bytes);
  RouteReader reader;
  reader.ask(a, routes);
  // Warp w of the grid, counted so that neighbours are on different multiprocessors.
  const int place = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  const int send_tasks = routes.tokens * (a.rows ? units : 0);
  typename Encoder::Source source;
  if (place < send_tasks) {
    const int token = quotient(place, a.units_divisor);
    Encoder::load(a, row_at(a.x, token), place - token * units, lane, source);
  }
  Guard guard(g, Kind::dispatch, warp == kBlockWarps - 1 ? lane : kPeersMax);
  if (threadIdx.x == 0) {
    read_epochs(g, Kind::dispatch, block);
    bad_routes = 0;
  }
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < g.ranks * kTokenWords; at += kBlockThreads) {
    reached[at] = 0;
  }
  __syncthreads();
  const Progress progress = a.halves.send ? block.sent : block.received;
  const std::uint64_t epoch = progress.epoch + 1;
  const int bank = static_cast<int>(progress.bank);
  const std::uint32_t tag = window::tag_of(epoch);

  if (a.halves.send) {
    reader.store_raw(a, routes);
    guard.pass(g, epoch, block.suspects, a.timeout_ns);
    __syncthreads();
    RouteReader::mark_duplicates(g, routes);
    __syncthreads();

    if (last_block) {
      if (warp == kBlockWarps - 1) {
        tell(g, Kind::dispatch, block.received.epoch, block.suspects, lane);
      }
      if (static_cast<int>(threadIdx.x) < g.ranks && ((block.suspects >> threadIdx.x) & 1U) == 0) {
        const int peer = static_cast<int>(threadIdx.x);
        send_cell(g, peer, CellKind::dispatch, bank, tag,
                  refused ? static_cast<int>(CellCode::refused) : routes.records(peer),
                  a.signature);
      }
      if (!a.cached && !refused) {
        send_counts(a, routes, per_expert, bank, tag, block.suspects);
      }
    }
    // Headers go to other warps than pieces while there are enough.
    if (!a.cached) {
#pragma unroll 1
      for (int token = warps - 1 - place; token < routes.tokens; token += warps) {
        send_header(a, routes, token, bank, tag, block.suspects, lane);
      }
    }
#pragma unroll 1
    for (int task = place; task < send_tasks; task += warps) {
      const int token = quotient(task, a.units_divisor);
      const int unit = task - token * units;
      if (task != place) Encoder::load(a, row_at(a.x, token), unit, lane, source);
      send_unit<Encoder>(a, routes, token, unit, source, bank, block.suspects, lane);
    }
  }

  if (!a.halves.receive && !a.cached && last_block) {
    write_routes(a, routes, a.saved->ids, a.saved->weights);
    if (threadIdx.x == 0) a.saved->bad_routes = bad_routes;
  }
  if (a.halves.receive) {
    DispatchReceiver receiver(a, drop, tag, bank, a.signature, lane);
    // One block writes down what the others need not know.
    const bool keeper = blockIdx.x == (gridDim.x > 1 ? gridDim.x - 2 : 0) && !a.cached;
    if (keeper) {
      const HandleArrays& handle = receiver.handle_;
      if (a.halves.send || a.refused) {
        write_routes(a, routes, handle.topk_ids(), handle.topk_weights());
      } else {
        copy_routes(a, handle);
        if (threadIdx.x == 0) bad_routes = a.saved->bad_routes;
        __syncwarp();
      }
      if (warp == 0) {
        write_header(receiver, epoch, a.refused ? 0 : a.tokens, bad_routes, lane);
      }
    }
    if (!a.cached && !drop && (keeper || a.layout == Layout::expert_major)) {
      __syncthreads();  // per_expert changes hands; the header is written before it is added to.
      number_rows(receiver, per_expert, keeper, lane);
      __syncthreads();
    }
    const int slots = g.layout.shape().tokens;
    const bool same_source = warps == quotient(warps, g.ranks_divisor) * g.ranks;
    const int receive_units = a.rows ? units : 1;
#pragma unroll 1
    for (int task = place;; task += warps) {
      const int item = quotient(task, g.ranks_divisor);
      const int slot = a.rows ? quotient(item, a.units_divisor) : item;
      if (slot >= slots) break;
      int source_rank = g.rank + task - item * g.ranks;
      if (source_rank >= g.ranks) source_rank -= g.ranks;
      const bool there = receiver.take_unit<Encoder>(source_rank, slot, item - slot * receive_units,
                                                     per_expert, lane);
      // A warp that always has the same source is done when that has no more.
      if (!there && same_source) break;
    }
  }
  __syncthreads();
  close(g, Kind::dispatch, a.halves, block);
}

template <bool kAligned>
auto kernel_for(const DispatchArgs& a) {
  using Kernel = void (*)(const DispatchArgs);
  const bool wide = a.x_dtype == DType::f32;
  if (a.codec.kind == CodecKind::fp8) {
    return wide ? Kernel{dispatch_kernel<Fp8Encoder<4, kAligned>>}
                : Kernel{dispatch_kernel<Fp8Encoder<2, kAligned>>};
  }
  const DType out = a.codec.kind == CodecKind::bf16  ? DType::bf16
                    : a.codec.kind == CodecKind::f16 ? DType::f16
                                                     : DType::f32;
  if (out == a.x_dtype || !a.rows) {
    return out == DType::f32 ? Kernel{dispatch_kernel<RawEncoder<4, kAligned>>}
                             : Kernel{dispatch_kernel<RawEncoder<2, kAligned>>};
  }
  return out == DType::f32 ? Kernel{dispatch_kernel<ConvertEncoder<4>>}
                           : Kernel{dispatch_kernel<ConvertEncoder<2>>};
}

auto kernel_for(const DispatchArgs& a) {
  return a.aligned ? kernel_for<true>(a) : kernel_for<false>(a);
}

std::size_t shared_bytes(const DispatchArgs& a) {
  return 2 * static_cast<std::size_t>(route_bytes(a.tokens, a.geometry.top_k)) +
         4 * static_cast<std::size_t>(a.geometry.experts > a.geometry.local_experts
                                          ? a.geometry.experts
                                          : a.geometry.local_experts);
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
