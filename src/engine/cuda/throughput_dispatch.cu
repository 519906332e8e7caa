// SPDX-License-Identifier: MIT
#include <algorithm>

#include "engine/cuda/dispatch_keep.cuh"
#include "engine/cuda/dispatch_padding.cuh"
#include "engine/cuda/dispatch_receive.cuh"
#include "engine/cuda/throughput_routes.cuh"

/// dispatch in throughput mode: a rank stages its rows, tells the ranks of its experts which are theirs, and
/// where; those pull each row once, straight to where it belongs. Four kernels: routes are counted; headers and rows
/// are written, and cells; one block awaits the peers' cells and numbers the rows; rows are pulled.
namespace sluice::engine::cuda {
namespace {

using protocol::CellKind;
using protocol::Kind;

extern __shared__ __align__(16) std::byte slice_memory[];

/// How this rank takes part: a cached dispatch may turn out not to go along its handle.
struct Terms {
  bool refused;
  std::uint32_t signature;
  __device__ __forceinline__ explicit Terms(const DispatchArgs& a)
      : refused(a.refused), signature(a.signature) {
    if (!a.cached || refused) return;
    refused = !goes_along(&a);
    signature = mix(signature,
                    read_brief(reinterpret_cast<const window::HandleHeader*>(a.handle)).dispatch);
  }
};

/// Counts this rank's routes, block by block; keeps them as they will be used; and lets nobody overwrite what
/// peers may still be reading.
__global__ void __launch_bounds__(kBlockThreads)
    count_kernel(const __grid_constant__ DispatchArgs a, const __grid_constant__ Desk desk) {
  __shared__ Block block;
  const Geometry& g = a.geometry;
  const Seat seat = Seat::own();
  const int lane = seat.lane;
  begin(g, Kind::dispatch, true, a.timeout_ns, block, seat);
  if (blockIdx.x == 0 && seat.warp == 0) accuse(g, block.suspects, lane);
  if (a.cached || a.refused) return;
  const Slice slice(slice_memory, g);
  const Share share(a.tokens);
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x); row < slice.rows; row += kBlockThreads) {
    slice.before[row] = 0;
  }
#pragma unroll 1
  for (int first = share.first; first < share.end; first += slice.tokens()) {
    note_slice(g, slice, min(slice.tokens(), share.end - first), [&](int token, int k) {
      const int id = load_route<false>(a, first + token, k);
      const int route = (first + token) * g.top_k + k;
      if (id == kBadRoute) atomicAdd(desk.bad_routes, 1U);
      desk.ids[route] = max(id, kNoRoute);
      desk.weights[route] = route_weight(a, first + token, k);
      return id;
    });
    pass_slice(slice);
  }
  __syncthreads();
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x); row < slice.rows; row += kBlockThreads) {
    const int count = slice.before[row];
    if (row < g.experts) {
      desk.experts[static_cast<int>(blockIdx.x) * g.experts + row] = count;
    } else {
      desk.records[static_cast<int>(blockIdx.x) * g.ranks + row - g.experts] = count;
    }
  }
}

/// Tokens of the first `blocks` blocks in a row of what they have counted: an expert, or behind those a rank.
__device__ __forceinline__ int counted(const Geometry& g, const Desk& desk, int row, int blocks) {
  const bool expert = row < g.experts;
  const std::int32_t* const counts = expert ? desk.experts + row : desk.records + (row - g.experts);
  const int stride = expert ? g.experts : g.ranks;
  int count = 0;
  if (mutant(KernelMutant::blocks_before_forgotten) && blocks < static_cast<int>(gridDim.x)) {
    return 0;
  }
#pragma unroll 4
  for (int b = 0; b < blocks; ++b) count += counts[b * stride];
  return count;
}

/// Encodes the rows of the tokens of this block into a stage.
template <typename Encoder>
__device__ __forceinline__ void stage_rows(const DispatchArgs& a, std::byte* window, Share share,
                                           int bank, int warp, int lane) {
  constexpr int kAtOnce = 4;  // units
  const int units = static_cast<int>(a.units_divisor.divisor);
#pragma unroll 1
  for (int token = share.first + warp; token < share.end; token += kBlockWarps) {
    const std::byte* const row = row_at(a.x, token);
    std::byte* const to = window + a.geometry.layout.staged_row(bank, token);
#pragma unroll 1
    for (int first = 0; first < units; first += kAtOnce) {
      typename Encoder::Source sources[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i < units) Encoder::load(a, row, first + i, lane, sources[i]);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= units) break;
        Unit<Encoder> encoded;
        encoded.encode(a, sources[i], lane);
        encoded.store(a, to, first + i, lane);
      }
    }
  }
}

/// Headers to the ranks of the experts, rows to where they are pulled from; last, counts and cells.
template <typename Encoder>
__global__ void __launch_bounds__(kBlockThreads)
    send_kernel(const __grid_constant__ DispatchArgs a, const __grid_constant__ Desk desk) {
  __shared__ Block block;
  const Geometry& g = a.geometry;
  const Seat seat = Seat::own();
  const int lane = seat.lane;
  begin(g, Kind::dispatch, true, a.timeout_ns, block, seat);
  const Terms terms(a);
  const std::uint32_t tag = window::tag_of(block.sent.epoch + 1);
  const int bank = static_cast<int>(block.sent.bank);
  const bool fresh = !a.cached && !terms.refused;
  const int tokens = terms.refused ? 0 : a.tokens;
  const Share share(tokens);
  if (fresh) {
    const Slice slice(slice_memory, g);
#pragma unroll 1
    for (int row = static_cast<int>(threadIdx.x); row < slice.rows; row += kBlockThreads) {
      slice.before[row] = counted(g, desk, row, static_cast<int>(blockIdx.x));
    }
#pragma unroll 1
    for (int first = share.first; first < share.end; first += slice.tokens()) {
      const int count = min(slice.tokens(), share.end - first);
      note_slice(g, slice, count,
                 [&](int token, int k) { return desk.ids[(first + token) * g.top_k + k]; });
      send_slice(a, desk, slice, first, count, tag, bank, block.suspects);
      pass_slice(slice);
    }
  }
  if (a.rows && desk.own.stride == 0) {
    stage_rows<Encoder>(a, desk.windows[g.rank], share, bank, seat.warp, lane);
  }
  if (is_last(&desk.done[Desk::kSend])) {
    // Whom some block has left out gets no cell.
    const std::uint32_t skipped = block.suspects | suspects_by_now(g);
    const auto blocks = static_cast<int>(gridDim.x);
    if (fresh) {
#pragma unroll 1
      for (int expert = static_cast<int>(threadIdx.x); expert < g.experts;
           expert += kBlockThreads) {
        const Owner owner = owner_of(g, expert);
        if (((skipped >> owner.rank) & 1U) != 0) continue;
        const auto count = static_cast<std::uint64_t>(counted(g, desk, expert, blocks));
        store_relaxed(reinterpret_cast<std::uint64_t*>(
                          out_at(g, owner.rank, g.layout.count(bank, owner.local))),
                      tag | count << 32);
      }
    }
    __syncthreads();
    if (seat.warp == 0) {
      std::uint32_t word = terms.refused ? cell_word::kRefused : 0;
      if (fresh && lane < g.ranks) {
        word = static_cast<std::uint32_t>(counted(g, desk, g.experts + lane, blocks));
        if (lane != g.rank) {
          count_many_bytes(g, Kind::dispatch, std::int64_t{word} * g.top_k * 16 + 16);
        }
      }
      publish(g, CellKind::dispatch, bank, tag, word, terms.signature, tokens, desk.own, skipped,
              lane);
    }
  }
  if (seat.warp == kCloseWarp) close(g, Kind::dispatch, Halves{true, false}, block, lane);
}

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
    int aligned = count;
    std::int64_t begin = expert * a.capacity;
    if (!slab) {
      const int alignment = major ? static_cast<int>(a.alignment) : 1;
      aligned = (count + alignment - 1) / alignment * alignment;
      const int2 scan = block_scan(aligned);
      begin = row + scan.x;
      row += scan.y;
    }
    if (!exists) continue;
#pragma unroll 1
    for (int source = 0; major && source < g.ranks; ++source) {
      desk.first_rows[source * g.local_experts + expert] += static_cast<std::int32_t>(begin);
    }
    count_rows(g, expert, count);
    handle.counts()[expert] = count;
    handle.aligned_counts()[expert] = aligned;
    handle.offsets()[expert] = begin;
    note_overflow(r, begin, count, shared);
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
__global__ void __launch_bounds__(kBlockThreads)
    number_kernel(const __grid_constant__ DispatchArgs a, const __grid_constant__ Desk desk) {
  __shared__ Shared shared;
  const Geometry& g = a.geometry;
  const Seat seat = Seat::own();
  const int lane = seat.lane;
  begin(g, Kind::dispatch, false, a.timeout_ns, shared.note.block, seat);
  const Terms terms(a);
  const bool drop = a.drop || terms.refused;
  const bool writes = !a.cached && a.handle != nullptr;
  const Receipt r = receipt_for(a, terms, shared.note);
  Arrivals& arrivals = *desk.arrivals;
  if (seat.warp == kBooksWarp) begin_header(a, writes, lane);
  if (seat.warp == 0) {
    const Arrival arrival = await_arrivals(g, CellKind::dispatch, r.bank, r.tag, r.signature,
                                           shared.note.block, a.timeout_ns, lane);
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
      count_many_bytes(g, Kind::dispatch, std::int64_t{arrival.records} * a.record_packets * 16);
    }
  }
  __syncthreads();
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

/// A source's row to its row, or rows. lost: zeros instead.
template <typename Encoder, int kSpan>
__device__ __forceinline__ void pull_row(const Receipt& r, const Desk& desk, int source, int token,
                                         int row, bool lost, int lane) {
  if (lanes_with(row >= 0) == 0) return;
  std::byte* const from =
      const_cast<std::byte*>(desk.arrivals->rows[source]) + token * desk.arrivals->stride[source];
  const int units = static_cast<int>(r.a.units_divisor.divisor);
#pragma unroll 1
  for (int unit = 0; unit < units; unit += kSpan) {
    Piece<Encoder, kSpan> piece(r.a, from, unit, lane);
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
__device__ __forceinline__ void pull_records(const Receipt& r, const Desk& desk, int place,
                                             int warps, int lane) {
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
    if (lane < g.top_k) {
      const int at = record * g.top_k + lane;
      r.handle.local_ids()[at] = local;
      r.handle.local_weights()[at] = __uint_as_float(header.y);
      r.handle.route_rows()[at] = row;
    }
    if (lane == 0) {
      r.handle.record_rank()[record] = source;
      r.handle.record_token()[record] = token;
    }
    if (a.rows) pull_row<Encoder, kSpan>(r, desk, source, token, row, false, lane);
  }
}

/// The same of a cached one.
template <typename Encoder, int kSpan>
__device__ __forceinline__ void pull_cached(const Receipt& r, const Desk& desk, int place,
                                            int warps, int lane) {
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
    pull_row<Encoder, kSpan>(r, desk, source, token, row, lost, lane);
    if (lane == 0 && !lost && source != g.rank) {
      count_many_bytes(g, Kind::dispatch, std::int64_t{r.a.record_packets} * 16);
    }
  }
}

/// What was pulled of a source that had given this rank up may be anything: its rows keep their numbers, are zeroed,
/// and have no source. By a whole block, after all rows have been pulled. Rare.
__device__ __noinline__ void mend_pulled(Late late, int source, int records) {
  const DispatchArgs& a = *late.a;
  const Geometry& g = a.geometry;
  const HandleArrays handle{a.handle, &a.handle_layout};
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (int record = static_cast<int>(threadIdx.x / 32); record < records; record += kBlockWarps) {
    if (handle.record_rank()[record] != source) continue;
#pragma unroll 1
    for (int k = 0; a.rows && k < g.top_k; ++k) {
      const int row = handle.route_rows()[record * g.top_k + k];
      if (row >= 0) zero_rows(a, row, row + 1, 1, lane);
    }
    if (a.cached) continue;
    __syncwarp();
    if (lane < g.top_k) {
      handle.local_ids()[record * g.top_k + lane] = -1;
      handle.local_weights()[record * g.top_k + lane] = 0.0F;
      handle.route_rows()[record * g.top_k + lane] = Handle::kRowAbsent;
    }
    if (lane == 0) {
      handle.record_rank()[record] = -1;
      handle.record_token()[record] = -1;
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const std::uint32_t bit = 1U << source;
  if (!a.cached) {
    handle.header()->accepted.words[0] &= ~std::uint64_t{bit};
    handle.header()->report.missing.words[0] |= bit;
  }
  if (a.report != nullptr) a.report->missing.words[0] |= bit;
  add_totals(&g, Kind::dispatch, {}, {bit, 0, 0});
  atomicOr(&g.state->suspects, bit);
}

/// Pulls the rows, and describes the records.
template <typename Encoder, int kSpan>
__global__ void __launch_bounds__(kBlockThreads)
    pull_kernel(const __grid_constant__ DispatchArgs a, const __grid_constant__ Desk desk) {
  __shared__ Note note;
  const Geometry& g = a.geometry;
  const Seat seat = Seat::own();
  const int lane = seat.lane;
  begin(g, Kind::dispatch, false, a.timeout_ns, note.block, seat);
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
    if (!a.cached) {
      pull_records<Encoder, kSpan>(r, desk, seat.place, seat.warps, lane);
    } else if (a.rows) {
      pull_cached<Encoder, kSpan>(r, desk, seat.place, seat.warps, lane);
    }
    if (a.rows && a.zero_padding) zero_by_handle(r, seat.place, seat.warps, lane);
  }
  if (is_last(&desk.done[Desk::kReceive])) {
#pragma unroll 1
    for (int source = 0; source < g.ranks; ++source) {
      const bool pulled = ((desk.arrivals->given >> source) & 1U) != 0 && source != g.rank;
      if (!pulled || !is_accused(g, source)) continue;
      mend_pulled({&a, &note}, source, static_cast<int>(r.handle.source_offsets()[g.ranks]));
      __syncthreads();
    }
    if (seat.warp == 0) {
      const std::uint64_t epoch = note.block.received.epoch + 1;
      tell(g, Kind::dispatch, epoch, note.block.suspects, lane);
      if (desk.own.stride != 0) {
        await_readers(g, Kind::dispatch, epoch, suspects_by_now(g), a.timeout_ns, lane);
      }
    }
  }
  if (seat.warp == kCloseWarp) close(g, Kind::dispatch, Halves{false, true}, note.block, lane);
}

using Kernel = void (*)(const DispatchArgs, const Desk);

/// Who encodes rows, and who pulls what was encoded, whose bytes are all it needs to know.
struct Kernels {
  Kernel send;
  Kernel pull;
};
Kernels kernels_for(const DispatchArgs& a) {
  constexpr int kSpan = 7;  // units: a row of 7168 elements is two pieces
  constexpr int kWideSpan = 3;
  const bool wide = a.x_dtype == DType::f32;
  if (a.codec.kind == CodecKind::fp8) {
    return {wide ? send_kernel<Fp8Encoder<4, false>> : send_kernel<Fp8Encoder<2, false>>,
            pull_kernel<Fp8Encoder<2, false>, kSpan>};
  }
  const DType out = a.codec.kind == CodecKind::bf16  ? DType::bf16
                    : a.codec.kind == CodecKind::f16 ? DType::f16
                                                     : DType::f32;
  const bool wide_out = out == DType::f32;
  const Kernel pull = wide_out ? pull_kernel<RawEncoder<4, false>, kWideSpan>
                               : pull_kernel<RawEncoder<2, false>, kSpan>;
  if (out == a.x_dtype || !a.rows) {
    return {wide_out ? send_kernel<RawEncoder<4, false>> : send_kernel<RawEncoder<2, false>>, pull};
  }
  return {wide_out ? send_kernel<ConvertEncoder<4>> : send_kernel<ConvertEncoder<2>>, pull};
}

std::size_t slice_bytes(const DispatchArgs& a) {
  return static_cast<std::size_t>(Slice::bytes(a.geometry.experts, a.geometry.ranks));
}

}  // namespace

int launch_throughput_dispatch(const DispatchArgs& args, const Desk& desk, const Launch& launch) {
  const Kernels kernels = kernels_for(args);
  DispatchArgs a = args;
  int error = 0;
  const auto run = [&](Kernel kernel, int blocks, std::size_t shared) {
    Launch own = launch;
    own.blocks = blocks;
    own.overlap = false;  // Blocks that wait for the kernel before would hold multiprocessors.
    const int failed = launch_kernel(kernel, a, own, shared, desk);
    if (error == 0) error = failed;
  };
  if (args.halves.send) {
    run(count_kernel, launch.blocks, slice_bytes(args));
    // What was not counted cannot be numbered.
    a.refused = a.refused || error != 0;
    a.drop = a.drop || error != 0;
    run(kernels.send, launch.blocks, slice_bytes(args));
  }
  if (args.halves.receive) {
    run(number_kernel, 1, 0);
    run(kernels.pull, launch.blocks, 0);
  }
  return error;
}

int load_throughput_dispatch_kernels() {
  const int most = Slice::bytes(kMaxExperts, kPeersMax);
  for (const Kernel kernel : {Kernel{count_kernel}, Kernel{number_kernel}}) {
    const int error = load_kernel(kernel, most);
    if (error != cudaSuccess) return error;
  }
  for (const CodecKind kind : {CodecKind::bf16, CodecKind::f16, CodecKind::f32, CodecKind::fp8}) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      DispatchArgs args;
      args.codec.kind = kind;
      args.x_dtype = dtype;
      const Kernels kernels = kernels_for(args);
      for (const Kernel kernel : {kernels.send, kernels.pull}) {
        const int error = load_kernel(kernel, most);
        if (error != cudaSuccess) return error;
      }
    }
  }
  return cudaSuccess;
}

}  // namespace sluice::engine::cuda
