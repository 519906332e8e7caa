// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/operation.cuh"

/// combine of a rank that refused its call, or whose outputs cannot be used: what peers push to it is
/// awaited, emptied and dropped.
namespace sluice::engine::cuda {

/// Waits for one packet and empties it.
__device__ __forceinline__ void drain_packet(std::byte* at, int peer, Patience& patience) {
  while (load_packet(at).w == window::kPoison) {
    if (patience.spent(peer)) return;
  }
  clear_packet(at);
}

/// By a whole block: a thread for every token that a peer may answer.
static __device__ __noinline__ void drain_answers(const CombineArgs* a, std::uint32_t tag,
                                                  int bank) {
  const Geometry& g = a->geometry;
  const int token = static_cast<int>(threadIdx.x);
  const bool exists = token < g.layout.shape().tokens;
  const int packets = g.hidden * (a->codec == DType::f32 ? 4 : 2) / 16;
  Patience patience(g, a->timeout_ns);
#pragma unroll 1
  for (int peer = 0; peer < g.ranks; ++peer) {
    const std::byte* cell_at = in_at(g, g.layout.cell(peer, protocol::CellKind::combine, bank));
    const std::byte* answer_at = in_at(g, g.layout.answer(peer, bank, exists ? token : 0));
    uint4 answer = make_uint4(0, 0, 0, 0);
    // Until as many answers are here as the peer's cell says.
    for (;;) {
      const uint4 cell = load_packet(cell_at);
      if (exists) answer = load_packet(answer_at);
      const int here = __syncthreads_count(exists && answer.x == tag);
      const bool complete = cell.x == tag && here >= static_cast<int>(cell.y);
      if (__syncthreads_or(complete || patience.spent(peer))) break;
    }
    if (!exists || answer.x != tag) continue;
#pragma unroll 1
    for (std::uint32_t rows = answer.w; rows != 0; rows &= rows - 1) {
      const int slot = token * g.layout.shape().combine_rows_per_token +
                       (a->single ? __ffs(static_cast<int>(rows)) - 1 : 0);
      std::byte* const row = in_at(g, g.layout.combine_row(peer, bank, slot));
      for (int i = 0; i < packets; ++i) drain_packet(row + i * 16, peer, patience);
      if (!a->single) break;
    }
  }
}

}  // namespace sluice::engine::cuda
