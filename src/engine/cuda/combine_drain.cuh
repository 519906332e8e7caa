// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/operation.cuh"

/// combine, what is pushed and not wanted: by peers that made another call, or by all where this rank
/// refused its call or cannot use its outputs. It is awaited, emptied and dropped.
namespace sluice::engine::cuda {

/// By a whole block: a thread for every token that a peer may answer.
static __device__ __noinline__ void drain_answers(const CombineArgs* a, std::uint32_t tag, int bank,
                                                  std::uint32_t peers) {
  const Geometry& g = a->geometry;
  const int token = static_cast<int>(threadIdx.x);
  const bool exists = token < g.layout.shape().tokens;
  std::uint64_t began = 0;
  Patience patience(g, a->timeout_ns, began);
#pragma unroll 1
  for (; peers != 0; peers &= peers - 1) {
    const int peer = __ffs(static_cast<int>(peers)) - 1;
    const std::byte* const cell_at =
        in_at(g, peer, g.layout.cell(protocol::CellKind::combine, bank));
    const std::byte* const answer_at = in_at(g, peer, g.layout.answer(bank, exists ? token : 0));
    uint4 answer = make_uint4(0, 0, 0, 0);
    uint4 form = answer;
    bool given_up = false;
    // Until as many answers are here as the peer's cell says.
    for (bool complete = false; !complete && !given_up;) {
      const uint4 cell = load_packet(cell_at);
      form = load_packet(cell_at + window::kFormPacket * window::kPacketBytes);
      if (exists) answer = load_packet(answer_at);
      const int here = __syncthreads_count(exists && answer.x == tag);
      const bool none = (cell.y & (cell_word::kRefused | cell_word::kNothing)) != 0;
      const int records = none ? 0 : static_cast<int>(cell.y & cell_word::kNumber);
      complete = __syncthreads_and(cell.x == tag && form.x == tag && here >= records) != 0;
      given_up = __syncthreads_or(!complete && patience.spent(peer)) != 0;
    }
    if (given_up || !exists || answer.x != tag) continue;
    const bool per_route = (form.y & window::kRowPerRoute) != 0;
    const int packets = static_cast<int>(form.y & ~window::kFormFlags);
#pragma unroll 1
    for (std::uint32_t rows = answer.w; rows != 0; rows &= rows - 1) {
      const int slot = token * g.layout.shape().combine_rows_per_token +
                       (per_route ? __ffs(static_cast<int>(rows)) - 1 : 0);
      std::byte* const row = in_at(g, peer, g.layout.combine_row(bank, slot));
      for (int i = 0; i < packets; ++i) drain_packet(row + i * 16, peer, patience);
      if (!per_route) break;
    }
  }
}

}  // namespace sluice::engine::cuda
