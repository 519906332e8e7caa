// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/combine_parts.cuh"
#include "engine/cuda/ledger.cuh"
#include "engine/cuda/verdict.cuh"

/// combine: who is given up while what it sends arrives. Every warp takes pieces of tokens by itself, so a peer
/// that dies, or comes at the deadline, may have come for some pieces of a token and not for others.
///
/// What verdict.cuh says; and of what was taken before:
///
/// - An emptied packet carries the operation's tag, so it is known.
/// - A weary warp looks again after it has stored its last piece. So all who look see the same. A record that all
///   pieces have taken counts; one that none has taken is lost; one that some have taken costs the token: who looks
///   writes its whole row as if nobody had answered. Of a record that is not taken by all pieces, one warp at
///   least is weary, and looks.
namespace sluice::engine::cuda {

/// The ranks for which the operation is closed, by one warp. gives_up: lane r wants it for rank r.
__device__ __forceinline__ std::uint32_t closed_peers(const Geometry& g, std::uint32_t tag,
                                                      int bank, bool gives_up) {
  State& state = *g.state;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool exists = lane < g.ranks;
  constexpr int kKind = static_cast<int>(protocol::Kind::combine);
  std::uint32_t* const closing = &state.closing[kKind][bank][exists ? lane : 0];
  std::uint32_t* const closed = &state.closed[kKind][bank][exists ? lane : 0];
  if (gives_up && claim(closing, tag)) {
    wait_grace(g);
    store_release(closed, mark_of(tag));  // Pairs with the load below.
  }
  __syncwarp();
  const bool closes = exists && load_acquire(closing) == mark_of(tag);
  if (closes) await_mark(closed, tag);  // Who closes it comes to an end.
  __syncwarp();
  return lanes_with(closes);
}

/// Whether rank `lane` says that it sends nothing.
__device__ __forceinline__ bool says_nothing(const Geometry& g, std::uint32_t tag, int bank,
                                             std::uint32_t signature, int lane) {
  const uint4 packet =
      load_packet(in_at(g, lane, g.layout.cell(protocol::CellKind::combine, bank)));
  PeerCell cell;
  cell.read(packet, signature);
  return packet.x == tag && cell.records() == 0;
}

/// Of ranks that are awaited: which say that they will send nothing; and who is given up, by all.
struct Silence {
  std::uint32_t silent;
  std::uint32_t gone;
};
static __device__ __noinline__ Silence ask_about(const CombineArgs* a, std::uint32_t tag, int bank,
                                                 std::uint32_t signature, std::uint32_t ranks,
                                                 std::uint64_t* began) {
  const Geometry& g = a->geometry;
  const int lane = static_cast<int>(threadIdx.x % 32);
  bool silent = false;
  bool gives_up = false;
  if (((ranks >> lane) & 1U) != 0) {
    silent = says_nothing(g, tag, bank, signature, lane);
    const std::uint64_t start = look_up(&g, lane, *began, a->timeout_ns);
    gives_up = start == 0;
    if (!gives_up) *began = start;
  }
  const std::uint32_t gone = closed_peers(g, tag, bank, gives_up);
  return {lanes_with(silent), gone};
}
/// By one warp, now and then between two polls.
__device__ __forceinline__ Silence listen(const Combine& c, std::uint32_t ranks,
                                          Patience& patience) {
  return ask_about(&c.a, c.tag, c.bank, c.signature, ranks, patience.began());
}

/// Of the pieces of a record: how many there are, and how many were taken. By one warp.
struct Taken {
  int all;
  int taken;
};
template <typename Traits>
__device__ __forceinline__ Taken count_taken(const Combine& c, int rank, int token, int lane) {
  const Geometry& g = c.g;
  const uint4 answer = load_packet(answer_in<Traits>(c, rank, g.layout.answer(c.bank, token)));
  int all = 0;
  int taken = 0;
  // With `single` every route that has a row, else one for all.
  std::uint32_t slots = Traits::kSingle ? (answer.x == c.tag ? answer.w : 0U) : 1U;
#pragma unroll 1
  for (; slots != 0; slots &= slots - 1) {
    const std::byte* const row = answer_in<Traits>(
        c, rank, g.layout.combine_row(c.bank, c.slot(token, __ffs(static_cast<int>(slots)) - 1)));
#pragma unroll 1
    for (int at = lane * kStepElements; at < g.hidden; at += 32 * kStepElements) {
      const uint4 packet = load_packet(row + at * Traits::Output::kElementBytes);
      ++all;
      if (packet.w == window::kPoison && packet.x == c.tag) ++taken;
    }
  }
  return {__reduce_add_sync(~0U, all), __reduce_add_sync(~0U, taken)};
}

}  // namespace sluice::engine::cuda
