// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/operation.cuh"

/// dispatch, what is pushed and not wanted.
namespace sluice::engine::cuda {

/// Awaits what the sources in `sources` push, and empties it, by a whole block: of peers that made
/// another call, or of all in a call that drops what comes.
static __device__ __noinline__ void drain_rows(const DispatchArgs* a, std::uint32_t tag, int bank,
                                               std::uint32_t sources) {
  const Geometry& g = a->geometry;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  std::uint64_t began = 0;
  Patience patience(g, a->timeout_ns, began);
#pragma unroll 1
  for (; sources != 0; sources &= sources - 1) {
    const int source = __ffs(static_cast<int>(sources)) - 1;
    std::byte* const from = in_at(g, source, 0);
    const std::byte* const cell_at = from + g.layout.cell(protocol::CellKind::dispatch, bank);
    bool given_up = false;
    const auto await = [&](int packet) {  // Pairs with send_cell() of the source.
      uint4 v = load_packet(cell_at + packet * window::kPacketBytes);
      while (!given_up && !__all_sync(~0U, v.x == tag)) {
        given_up = __any_sync(~0U, patience.spent(source));
        v = load_packet(cell_at + packet * window::kPacketBytes);
      }
      return v;
    };
    const uint4 first = await(0);
    const int packets = static_cast<int>(await(window::kFormPacket).y);
#pragma unroll 1
    for (int token = warp; !given_up && token < g.layout.shape().tokens; token += kBlockWarps) {
      const int packet = window::bit_packet(token);
      const uint4 v = packet == 0 ? first : await(packet);
      const int bit = packet == 0 ? token : (token - window::kFirstTokens) % window::kPacketTokens;
      const std::uint32_t bits = packet == 0 || bit >= 64 ? v.w : (bit >= 32 ? v.z : v.y);
      if (given_up || ((bits >> (bit % 32)) & 1U) == 0) continue;
      std::byte* const row = from + g.layout.dispatch_row(bank, token);
      for (int i = lane; i < packets; i += 32) drain_packet(row + i * 16, source, patience);
      __syncwarp();
    }
  }
}

}  // namespace sluice::engine::cuda
