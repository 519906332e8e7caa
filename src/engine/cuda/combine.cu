// SPDX-License-Identifier: MIT
#include "engine/cuda/combine_drain.cuh"
#include "engine/cuda/combine_receive.cuh"
#include "engine/cuda/combine_send.cuh"

/// combine: the expert's rank forms one partial sum per record and pushes it home; home adds the
/// partial sums of a token, ranks ascending, as soon as they are there.
namespace sluice::engine::cuda {
namespace {

using protocol::CellKind;
using protocol::Kind;

/// Whether the call's tensors are those that the handle's dispatch calls for.
__device__ __forceinline__ bool fits(const CombineArgs& a, const HandleState& state) {
  const bool slabs = state.layout == static_cast<std::uint8_t>(Layout::expert_slab);
  if (a.y_slabs != slabs) return false;
  if (slabs ? a.y_rows != state.capacity : a.y_rows < state.rows) return false;
  return a.drop || !a.halves.receive || a.tokens == state.tokens;
}

template <typename Traits>
__global__ void __launch_bounds__(kBlockThreads, 2)
    combine_kernel(const __grid_constant__ CombineArgs a) {
  __shared__ Block block;
  const Geometry& g = a.geometry;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(gridDim.x) * kBlockWarps;
  const int place = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  const bool last_block = blockIdx.x == gridDim.x - 1;
  const int steps = static_cast<int>(a.steps_divisor.divisor);
  overlap_neighbours();

  // Everything that is needed first is asked for at once.
  const HandleArrays handle{const_cast<std::byte*>(a.handle), &a.handle_layout};
  HandleState state;
  Record record;
  HomeToken home;
  if (!a.refused) {
    state = read_handle(handle.header(), g.fingerprint, g.rank);
    // Whether or not there is such a record.
    if (a.halves.send && quotient(place, a.steps_divisor) < g.ranks * g.layout.shape().tokens) {
      record = read_record(handle, g, quotient(place, a.steps_divisor), lane);
    }
    if (a.halves.receive && place < a.tokens * steps) {
      home = read_token(a, handle, quotient(place, a.steps_divisor), lane);
    }
  }
  Guard guard(g, Kind::combine, warp == kBlockWarps - 1 ? lane : kPeersMax);
  if (threadIdx.x == 0) read_epochs(g, Kind::combine, block);
  __syncthreads();
  const Progress progress = a.halves.send ? block.sent : block.received;
  const bool usable = state.usable && fits(a, state);
  const int records = usable ? state.records : 0;
  Combine c(a, progress, mix(a.signature, state.dispatch * 4 + state.layout), block.suspects,
            state.layout);

  if (a.halves.send) {
    guard.pass(g, progress.epoch + 1, block.suspects, a.timeout_ns);
    __syncthreads();
    if (usable && !Traits::kSingle && a.weights_given && !a.plain_sum) {
#pragma unroll 1
      for (int token = warps - 1 - place; token < a.tokens; token += warps) {
        HomeToken from = read_token(a, handle, token, lane);
#pragma unroll 1
        for (std::uint32_t ranks = find_ranks(g, from); ranks != 0; ranks &= ranks - 1) {
          const int rank = __ffs(static_cast<int>(ranks)) - 1;
          send_weights_to(c, out_at(g, rank, g.layout.weight(g.rank, c.bank, token)),
                          from.owner == rank ? from.weight : 0.0F, lane);
        }
      }
    }
    if (last_block) {
      if (warp == kBlockWarps - 1) {
        tell(g, Kind::combine, block.received.epoch, block.suspects, lane);
      }
      if (static_cast<int>(threadIdx.x) < g.ranks && ((block.suspects >> threadIdx.x) & 1U) == 0) {
        const int peer = static_cast<int>(threadIdx.x);
        int answers = static_cast<int>(CellCode::refused);
        if (usable) {
          const std::int64_t* const offsets = handle.source_offsets();
          answers = handle.header()->accepted.contains(peer)
                        ? static_cast<int>(offsets[peer + 1] - offsets[peer])
                        : static_cast<int>(CellCode::nothing);
        }
        send_cell(g, peer, CellKind::combine, c.bank, c.tag, answers, c.signature);
      }
    }
#pragma unroll 1
    for (int task = place; task < records * steps; task += warps) {
      const int index = quotient(task, a.steps_divisor);
      if (task != place) record = read_record(handle, g, index, lane);
      send_record<Traits>(c, record, task - index * steps, lane);
    }
  }

  if (a.halves.receive) {
    if (usable && !a.drop) {
#pragma unroll 1
      for (int task = place; task < a.tokens * steps; task += warps) {
        const int token = quotient(task, a.steps_divisor);
        if (task != place) home = read_token(a, handle, token, lane);
        if constexpr (Traits::kSingle) {
          chain_token<Traits>(c, home, token, task - token * steps, lane);
        } else {
          sum_token<Traits>(c, home, token, task - token * steps, lane);
        }
      }
      if (a.weights_home != nullptr) {
#pragma unroll 1
        for (int token = place; token < a.tokens; token += warps) take_row_weights(c, token, lane);
      }
    }
    if (last_block && (!usable || a.drop)) drain_answers(&a, c.tag, c.bank);
    // Every peer's cell, also of those that had nothing to say: the proof that banks are reused by.
    if (last_block && warp == 0) {
      Cells cells(g, CellKind::combine, c.bank, c.tag, c.signature, lane);
      cells.await(g.ranks - 1, lane, c.patience);
      const std::uint32_t missing = cells.missing();
      const std::uint32_t refused = cells.refused();
      const std::uint32_t mismatched = usable ? cells.mismatched() : 0;
      if (lane == 0 && (missing | refused | mismatched) != 0) {
        report_cells(&g.board->totals[static_cast<int>(Kind::combine)], missing, refused,
                     mismatched);
      }
    }
  }
  __syncthreads();
  close(g, Kind::combine, a.halves, block);
}

template <bool kSingle, bool kAligned>
auto kernel_for(const CombineArgs& a) {
  using Kernel = void (*)(const CombineArgs);
  const bool wide_y = a.y_dtype == DType::f32;
  if (a.codec == DType::f32) {
    return wide_y ? Kernel{combine_kernel<CombineTraits<4, 4, kSingle, kAligned>>}
                  : Kernel{combine_kernel<CombineTraits<2, 4, kSingle, kAligned>>};
  }
  return wide_y ? Kernel{combine_kernel<CombineTraits<4, 2, kSingle, kAligned>>}
                : Kernel{combine_kernel<CombineTraits<2, 2, kSingle, kAligned>>};
}

auto kernel_for(const CombineArgs& a) {
  if (a.single) return a.aligned ? kernel_for<true, true>(a) : kernel_for<true, false>(a);
  return a.aligned ? kernel_for<false, true>(a) : kernel_for<false, false>(a);
}

}  // namespace

int launch_combine(const CombineArgs& args, const Launch& launch) {
  return launch_kernel(kernel_for(args), args, launch, 0);
}

int load_combine_kernels() {
  for (const DType codec : {DType::bf16, DType::f32}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (const bool single : {false, true}) {
        for (const bool aligned : {false, true}) {
          CombineArgs args;
          args.codec = codec;
          args.y_dtype = dtype;
          args.single = single;
          args.aligned = aligned;
          cudaFuncAttributes attributes;
          const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel_for(args));
          if (error != cudaSuccess) return error;
        }
      }
    }
  }
  return cudaSuccess;
}

int combine_blocks_per_processor(const CombineArgs& args) {
  return blocks_per_processor(kernel_for(args), 0);
}

}  // namespace sluice::engine::cuda
