// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/dispatch_keep.cuh"
#include "engine/cuda/throughput_ring.cuh"
#include "engine/cuda/throughput_routes.cuh"

/// dispatch in throughput mode, send half: routes are counted; then headers and rows are written, and cells.
namespace sluice::engine::cuda {

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
static __global__ void __launch_bounds__(kBlockThreads, 1)
    count_kernel(const __grid_constant__ DispatchArgs a, const __grid_constant__ Desk desk) {
  __shared__ Block block;
  const Geometry& g = a.geometry;
  Part part(g, protocol::Kind::dispatch, kSendHalf, a.timeout_ns, block);
  const Seat& seat = part.seat;
  const int lane = seat.lane;
  part.recorder.mark(Phase::wait);
  if (blockIdx.x == 0 && seat.warp == 0) accuse(g, block.suspects, lane);
  if (a.cached || a.refused) return;
  const Slice slice(throughput_memory, g);
  const Share share(a.tokens);
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x); row < slice.rows; row += kBlockThreads) {
    slice.before[row] = 0;
  }
#pragma unroll 1
  for (int first = share.first; first < share.end; first += slice.tokens()) {
    const auto load = [&](int token, int k) {
      return GivenRoute{load_route<false>(a, first + token, k), route_weight(a, first + token, k)};
    };
    const auto keep = [&](int token, int k, const GivenRoute& route) {
      const int at = (first + token) * g.top_k + k;
      if (route.id == kBadRoute) atomicAdd(desk.bad_routes, 1U);
      desk.ids[at] = max(route.id, kNoRoute);
      desk.weights[at] = route.weight;
      return route.id;
    };
    note_slice(g, slice, min(slice.tokens(), share.end - first), load, keep);
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
  part.recorder.mark(Phase::count);
  part.recorder.finish(Role::worker);
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
#pragma unroll 12
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
        if (first + i < units) Encoder::load(a, row, token, first + i, lane, sources[i]);
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

/// The same of rows that travel as they are.
__device__ __forceinline__ void copy_rows(const DispatchArgs& a, const Desk& desk, Ring& ring,
                                          Share share, int bank, int warp, int lane) {
  RowCopier copier(ring, throughput_memory, desk.ring_bytes, warp, lane);
  std::byte* const window = desk.windows[a.geometry.rank];
#pragma unroll 1
  for (int token = share.first + warp; token < share.end; token += kBlockWarps) {
    std::byte* const to = window + a.geometry.layout.staged_row(bank, token);
    copier.copy(row_at(a.x, token), a.row_bytes, lane == 0 ? to : nullptr);
  }
  copier.finish();
}

/// The same of rows that become fp8: as many units at a time as a slot of the ring holds.
template <typename Encoder>
__device__ __forceinline__ void quantise_rows(const DispatchArgs& a, const Desk& desk, Ring& ring,
                                              Share share, int bank, int warp, int lane) {
  constexpr int kUnitBytes = window::kUnitElements * Encoder::kInputBytes;
  constexpr int kUnits = Ring::kSlotBytes / kUnitBytes;
  static_assert(kUnits >= 1);
  const int hidden = a.geometry.hidden;
  const int units = static_cast<int>(a.units_divisor.divisor);
  const int pieces = (units + kUnits - 1) / kUnits;  // of a row
  const int first = share.first + warp;
  const int all =
      first < share.end ? (share.end - first + kBlockWarps - 1) / kBlockWarps * pieces : 0;
  PieceFeed<Ring> feed(ring, throughput_memory, warp, lane);
  const auto ask = [&](int piece) {
    if (piece >= all) return;
    const int row = piece / pieces;
    const int at = (piece - row * pieces) * kUnits * kUnitBytes;
    feed.ask(row_at(a.x, first + row * kBlockWarps) + at,
             min(kUnits * kUnitBytes, hidden * Encoder::kInputBytes - at));
  };
#pragma unroll 1
  for (int piece = 0; piece < Ring::kLoading; ++piece) ask(piece);
#pragma unroll 1
  for (int piece = 0; piece < all; ++piece) {
    const SharedAt shared = feed.take();
    ask(piece + Ring::kLoading);
    const int row = piece / pieces;
    const int unit = (piece - row * pieces) * kUnits;
    std::byte* const to = desk.windows[a.geometry.rank] +
                          a.geometry.layout.staged_row(bank, first + row * kBlockWarps);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (unit + i >= units) break;
      typename Encoder::Source source;
      Encoder::read(shared + i * kUnitBytes, hidden - (unit + i) * window::kUnitElements, lane,
                    source);
      Unit<Encoder> encoded;
      encoded.encode(a, source, lane);
      encoded.store(a, to, unit + i, lane);
    }
  }
}

/// Stages the rows of the tokens of this block by way of shared memory, if that can be done; of rows that are encoded
/// already without their scales.
template <typename Encoder>
__device__ __forceinline__ bool stage_by_ring(const DispatchArgs& a, const Desk& desk, Ring& ring,
                                              Share share, int bank, int warp, int lane) {
  if (!a.aligned || desk.ring_bytes == 0) return false;
  if constexpr (Encoder::kVerbatim) {
    copy_rows(a, desk, ring, share, bank, warp, lane);
    return true;
  }
  if constexpr (Encoder::kQuantises) {
    if (desk.ring_bytes != Ring::kBytes) return false;
    quantise_rows<Encoder>(a, desk, ring, share, bank, warp, lane);
    return true;
  }
  return false;
}

/// Only the scales, of rows that are encoded already.
__device__ __forceinline__ void stage_scales(const DispatchArgs& a, std::byte* window, Share share,
                                             int bank, int warp, int lane) {
  const int packets = static_cast<int>(a.units_divisor.divisor) * a.scale_packets;
#pragma unroll 1
  for (int token = share.first + warp; token < share.end; token += kBlockWarps) {
    std::byte* const to = window + a.geometry.layout.staged_row(bank, token) + a.row_bytes;
#pragma unroll 1
    for (int i = lane; i < packets; i += 32) {
      store_packet(to + i * 16, given_packet(a, token, i / a.scale_packets, i % a.scale_packets));
    }
  }
}

/// Headers to the ranks of the experts, rows to where they are pulled from; last, counts and cells.
template <typename Encoder>
__global__ void __launch_bounds__(kBlockThreads, 1)
    send_kernel(const __grid_constant__ DispatchArgs a, const __grid_constant__ Desk desk) {
  __shared__ Block block;
  __shared__ Ring ring;
  const Geometry& g = a.geometry;
  Part part(g, protocol::Kind::dispatch, kSendHalf, a.timeout_ns, block);
  const Seat& seat = part.seat;
  const int lane = seat.lane;
  const Terms terms(a);
  const std::uint32_t tag = window::tag_of(block.sent.epoch + 1);
  const int bank = static_cast<int>(block.sent.bank);
  const bool fresh = !a.cached && !terms.refused;
  const int tokens = terms.refused ? 0 : a.tokens;
  const Share share(tokens);
  if (fresh) {
    const Slice slice(throughput_memory, g);
#pragma unroll 1
    for (int row = static_cast<int>(threadIdx.x); row < slice.rows; row += kBlockThreads) {
      slice.before[row] = counted(g, desk, row, static_cast<int>(blockIdx.x));
    }
#pragma unroll 1
    for (int first = share.first; first < share.end; first += slice.tokens()) {
      const int count = min(slice.tokens(), share.end - first);
      note_slice(
          g, slice, count,
          [&](int token, int k) {
            return GivenRoute{desk.ids[(first + token) * g.top_k + k], 0.0F};
          },
          [](int /*token*/, int /*k*/, const GivenRoute& route) { return route.id; });
      send_slice(a, desk, slice, first, count, tag, bank, block.suspects);
      pass_slice(slice);
    }
  }
  part.recorder.mark(Phase::put);
  bool scales_left = desk.own.stride != 0;
  if (a.rows && desk.own.stride == 0) {
    scales_left = stage_by_ring<Encoder>(a, desk, ring, share, bank, seat.warp, lane);
    if (!scales_left) {
      stage_rows<Encoder>(a, desk.windows[g.rank], share, bank, seat.warp, lane);
    }
  }
  if (Encoder::kGiven && a.rows && scales_left && !mutant(KernelMutant::given_scales_left)) {
    stage_scales(a, desk.windows[g.rank], share, bank, seat.warp, lane);
  }
  part.recorder.mark(Encoder::kVerbatim ? Phase::put : Phase::quantise);
  if (is_last(&desk.done[Desk::kSend])) {
    // Whom some block has left out gets no cell.
    const std::uint32_t skipped = block.suspects | suspects_by_now(g);
    const auto blocks = static_cast<int>(gridDim.x);
    __shared__ std::uint32_t records[kPeersMax];
    if (fresh) {
#pragma unroll 1
      for (int row = static_cast<int>(threadIdx.x); row < g.experts + g.ranks;
           row += kBlockThreads) {
        const int count = counted(g, desk, row, blocks);
        if (row >= g.experts) {
          records[row - g.experts] = static_cast<std::uint32_t>(count);
          continue;
        }
        const Owner owner = owner_of(g, row);
        if (((skipped >> owner.rank) & 1U) != 0) continue;
        store_relaxed(reinterpret_cast<std::uint64_t*>(
                          out_at(g, owner.rank, g.layout.count(bank, owner.local))),
                      tag | static_cast<std::uint64_t>(count) << 32);
      }
    }
    __syncthreads();
    if (seat.warp == 0) {
      std::uint32_t word = terms.refused ? cell_word::kRefused : 0;
      if (fresh && lane < g.ranks) {
        word = records[lane];
        if (lane != g.rank) {
          count_bytes(g, protocol::Kind::dispatch, std::int64_t{word} * g.top_k * 16 + 16);
        }
      }
      publish(g, protocol::CellKind::dispatch, bank, tag, word, terms.signature, tokens, desk.own,
              skipped, lane);
    }
  }
  part.close_half();
}

}  // namespace sluice::engine::cuda
