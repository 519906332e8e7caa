// SPDX-License-Identifier: MIT
#include <algorithm>

#include "engine/cuda/carriers.cuh"
#include "engine/cuda/throughput_dispatch_receive.cuh"
#include "engine/cuda/throughput_end.cuh"
#include "engine/cuda/throughput_stage.cuh"

/// dispatch in throughput mode, one kernel: a rank tells the ranks of its experts how many tokens are theirs, then which, and
/// stages the rows that they cannot read where they lie; they pull each row once, straight to where it belongs. A warp
/// stages and pulls, and waits for its record when nothing is left to stage.
namespace sluice::engine::cuda {
namespace {

/// All warps of one block of so many stage until nothing is left, and then pull: not those of the block that numbers.
constexpr int kStagersEach = 3;

/// All of a dispatch, or a half of it.
template <typename Encoder, int kSpan>
__global__ void __launch_bounds__(kBlockThreads, 1)
    dispatch_kernel(__grid_constant__ Parameter<DispatchArgs> a,
                    __grid_constant__ Parameter<Desk> desk,
                    __grid_constant__ Parameter<RowCounts> row_counts) {
  __shared__ Shared shared;
  __shared__ Ring ring;
  const Geometry& g = a.geometry;
  if (carries(g))
    return carry_meanwhile<128>(&g, protocol::Kind::dispatch, a.halves.receive, throughput_memory);
  const Block& block = shared.note.block;
  DispatchNotes& notes = *desk.dispatch_notes;
  unsigned share = 0;  // Of the first thread. On its way while the block opens.
  if (threadIdx.x == 0 && a.halves.send) {
    share = atomicAdd(&notes.next[DispatchNotes::kShares], 1U);
  }
  Part part(g, protocol::Kind::dispatch, a.halves, a.timeout_ns, shared.note.block);
  part.meet();
  const Seat& seat = part.seat;
  const int lane = seat.lane;
  const Terms terms(a);
  const bool fresh = is_fresh(a, terms);
  const bool drop = a.drop || terms.refused;
  bool numbers = blockIdx.x == 0;
  const Batches batches(a, terms.refused ? 0 : a.tokens, seat.warps, Encoder::kQuantises);
  const std::uint32_t parts = parts_of(a, desk, fresh, Encoder::kGiven, batches);
  if (a.halves.send) {
    const auto sent = [&] {
      count_sent(g, protocol::CellKind::dispatch, block.sent.epoch + 1, &notes.sent, 1, parts);
    };
    if (block.suspects != 0) {
      if (seat.warp == 0) {
        accuse(g, block.suspects, lane);
        await_flushed(g, desk, block, a.timeout_ns);
      }
      fence_system();  // Before anything is overwritten, and before other blocks see what this one has counted.
      __syncthreads();
    }
    if (fresh) {
      numbers = Routing(a, desk, block, terms).send(notes, share, sent);
    } else if (blockIdx.x == 0 && seat.warp == 0) {
      tell_records(a, desk, block, terms, terms.refused ? cell_word::kRefused : 0, lane);
      __syncwarp();
      if (lane == 0) sent();
    }
    part.recorder.mark(Phase::put);
  } else if (!a.cached && a.handle != nullptr && !a.refused) {
    const HandleArrays handle{a.handle, &a.handle_layout};
#pragma unroll 1
    for (int at = static_cast<int>(blockIdx.x) * kBlockThreads + static_cast<int>(threadIdx.x);
         at < a.tokens * g.top_k; at += worker_blocks(g) * kBlockThreads) {
      handle.topk_ids()[at] = desk.ids[at];
      handle.topk_weights()[at] = desk.weights[at];
    }
#pragma unroll 1
    for (int at = static_cast<int>(blockIdx.x) * kBlockThreads + static_cast<int>(threadIdx.x);
         at < a.tokens * g.ranks; at += worker_blocks(g) * kBlockThreads) {
      if (mutant(KernelMutant::numbers_not_kept)) break;
      handle.record_numbers()[at] = desk.record_numbers[at];
    }
  }
  const Receipt r = receipt_for(a, terms, shared.note);
  RowCopier copier(ring, throughput_memory, desk.ring_bytes, seat.warp, lane);
  Stager<Encoder> stager(a, desk, block, batches, parts, copier, seat);
  Puller<Encoder, kSpan> puller(r, desk, copier, a.halves.receive && !drop, lane);
  // Some stage until it is done: who only pulled would let others wait for its own rows. The others do so when their record is not
  // there. What the copy engine of a multiprocessor is asked for it brings in that order: beside warps that pull over links, one
  // that stages would wait for their rows. So its neighbours stage, too.
  // Not the block that waits for cells: it would keep what its warps have taken.
  const bool stages_first = static_cast<int>(blockIdx.x) % kStagersEach == 1 && !numbers;
  bool stages = a.halves.send && stager.open(stages_first);
  // A block that is alone stages before it waits for anybody's cell: others wait for its rows. So does, with other nodes, the one
  // that will wait for cells: these come from there when all rows are staged, also those that its warps may have taken.
  const bool alone = stages && (worker_blocks(g) == 1 || (numbers && g.published != nullptr));
#pragma unroll 1
  for (bool pulls = !alone;; pulls = true) {
    if (pulls && a.halves.receive && numbers) {
      number_rows_for_all(r, desk, drop, row_counts, shared, part.recorder, seat);
    }
    bool waited = false;
#pragma unroll 1
    for (;;) {
      if (pulls && !(stages && stages_first) && puller.look() && puller.is_ready()) {
        puller.pull();
      } else if (stages) {
        stages = stager.stage_next();
        if (!stages) part.recorder.mark(Encoder::kVerbatim ? Phase::put : Phase::quantise);
      } else if (pulls && puller.has_more()) {
        if (!waited) part.recorder.mark(Phase::place);
        puller.await();
        if (!waited) part.recorder.mark(Phase::wait);
        waited = true;
      } else {
        break;
      }
    }
    if (pulls) break;
  }
  copier.finish();
  if (a.halves.receive && !drop && a.rows && a.zero_padding) {
    std::int64_t rows = a.cached ? r.handle.header()->rows : desk.arrivals->records[g.ranks];
    if (a.capacity > 0) rows = min(rows, a.capacity);
    zero_by_handle(r, rows, seat.place, seat.warps, lane);
  }
  part.recorder.mark(Phase::place);
  end_part(
      g, protocol::Kind::dispatch, a.halves, a.timeout_ns, block, &notes.read, desk.done,
      a.halves.receive && puller.gave_up(), desk.own.stride != 0, seat,
      [&] { mend_received(r, desk, shared.note, seat); },
      [&](int lane_of_last) {
        if (a.halves.receive && lane_of_last < g.ranks) {
          count_wait(g, lane_of_last, notes.waited_ns[lane_of_last]);
        }
        __syncwarp();
        if (lane_of_last == 0) notes = DispatchNotes{};
      });
  part.close_half();
  count_worked(g, protocol::Kind::dispatch, a.halves.receive);
}

using Kernel = void (*)(Parameter<DispatchArgs>, Parameter<Desk>, Parameter<RowCounts>);

Kernel kernel_for(const DispatchArgs& a) {
  constexpr int kSpan = 2;  // units of a row at once, where it does not go through shared memory
  constexpr int kWideSpan = 1;
  const bool wide = a.x_dtype == DType::f32;
  if (a.codec.kind == CodecKind::fp8) {
    if (a.x_dtype == DType::e4m3) return dispatch_kernel<GivenEncoder, kSpan>;
    return wide ? dispatch_kernel<Fp8Encoder<4, false>, kSpan>
                : dispatch_kernel<Fp8Encoder<2, false>, kSpan>;
  }
  const DType out = a.codec.kind == CodecKind::bf16  ? DType::bf16
                    : a.codec.kind == CodecKind::f16 ? DType::f16
                                                     : DType::f32;
  const bool wide_out = out == DType::f32;
  if (out == a.x_dtype || !a.rows) {
    return wide_out ? dispatch_kernel<RawEncoder<4, false>, kWideSpan>
                    : dispatch_kernel<RawEncoder<2, false>, kSpan>;
  }
  return wide_out ? dispatch_kernel<ConvertEncoder<4>, kWideSpan>
                  : dispatch_kernel<ConvertEncoder<2>, kSpan>;
}

std::size_t slice_bytes(const DispatchArgs& a) {
  return static_cast<std::size_t>(Slice::bytes(a.geometry.experts, a.geometry.ranks));
}

/// What blocks have of shared memory besides.
constexpr int kOtherShared = 3 << 10;
static_assert(sizeof(Ring) + sizeof(Shared) + 1024 <= kOtherShared);

}  // namespace

int launch_throughput_dispatch(const DispatchArgs& args, const Desk& desk, const Launch& launch) {
  Launch own = launch;
  own.overlap = false;  // Blocks that wait for the kernel before would hold multiprocessors.
  Desk of_halves = desk;
  const Desk::Half half = args.halves.receive ? Desk::kReceive : Desk::kSend;
  of_halves.dispatch_notes += half;
  of_halves.done += half;
  const std::size_t shared =
      std::max({slice_bytes(args), static_cast<std::size_t>(desk.ring_bytes), kCarrierBytes});
  return launch_kernel(kernel_for(args), own, shared, args, of_halves, launch.row_counts);
}

int throughput_ring_bytes() {
  int device = 0;
  int bytes = 0;
  cudaFuncAttributes attributes;
  const bool has_engine =
      cudaFuncGetAttributes(&attributes, kernel_for(DispatchArgs{})) == cudaSuccess &&
      attributes.ptxVersion >= 90 && cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ==
          cudaSuccess;
  return has_engine ? std::clamp(bytes - kOtherShared, 0, Ring::kBytes) : 0;
}

int load_throughput_dispatch_kernels() {
  const int shared = std::max({Slice::bytes(kMaxExperts, kPeersMax), throughput_ring_bytes(),
                               static_cast<int>(kCarrierBytes)});
  for (const CodecKind kind : {CodecKind::bf16, CodecKind::f16, CodecKind::f32, CodecKind::fp8}) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32, DType::e4m3}) {
      DispatchArgs args;
      args.codec.kind = kind;
      args.x_dtype = dtype;
      const int error = load_kernel(kernel_for(args), shared);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace sluice::engine::cuda
