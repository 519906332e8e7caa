// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/throughput.cuh"

/// Throughput mode: how an operation, or a half of one, ends. Two things are found out, at the same time: that all has been
/// read, for which peers wait, and that all has been done, for the caller.
namespace sluice::engine::cuda {

/// In DispatchNotes::read and CombineNotes::read, besides how many blocks have read all that they will read of peers.
namespace read_word {
/// For each that this does not hold of: something is to be mended, or read once more, and peers are told when that is done.
inline constexpr std::uint32_t kMends = 1U << 16;
/// All have, and the last of them has looked whether anything is to be mended.
inline constexpr std::uint32_t kDecided = 1U << 31;
static_assert(kBlocksMax < static_cast<int>(kMends) && kBlocksMax < (1 << 15) - 1);
}  // namespace read_word

/// Counts a block that has read all, and tells the peers when it is the last of the launch, unless something is to be mended.
/// count: 1, and read_word::kMends. By one warp of every block, after a barrier. Whether the peers have been told. Pairs with
/// open() and await_readers() of the peer.
///
/// They wait for it, so it waits for nothing that was stored: there is no fence, nor need one be. What a peer overwrites after it
/// has seen this was read here, not written. Each load has returned before its block came to the barrier, and so before that
/// block counted; and the store to the peer depends on what the last count returned. (PTX promises that only of a release;
/// hardware stores nothing that depends on what it does not know yet. As in open().) For the same reason a peer's accusation,
/// which comes before it overwrites anything, is seen by who looks after the last count if any block has read what came after it;
/// one that comes later speaks of nothing that was read. (It is never taken back: who was accused once ends all that follows by
/// way of the last block, which takes some microseconds longer.)
__device__ __forceinline__ bool tell_once_read(const Geometry& g, protocol::Kind kind,
                                               const Block& block, std::uint32_t* read,
                                               std::uint32_t count, int lane) {
  std::uint32_t before = 0;
  if (lane == 0) before = atomicAdd(read, count);
  before = __shfl_sync(~0U, before, 0);
  const std::uint64_t epoch = block.received.epoch + 1;
  const std::uint32_t blocks = before % read_word::kMends;
  if (mutant(KernelMutant::read_by_the_first) && blocks == 0) {
    tell_read(g, kind, epoch, block.suspects, lane);
  }
  if (static_cast<int>(blocks) + 1 != worker_blocks(g)) return false;
  bool mends = before + count >= read_word::kMends;
  std::uint32_t verdict = read_word::kDecided;
  if (__any_sync(~0U, lane < g.ranks && lane != g.rank && is_accused(g, lane))) {
    mends = true;
    verdict += read_word::kMends;
  }
  if (!mends) tell_read(g, kind, epoch, block.suspects, lane);
  if (lane == 0) atomicAdd(read, verdict);  // Pairs with is_to_mend().
  return !mends;
}

/// Whether something is to be mended. Waits for the block that has read last, which runs, and waits for nobody until it has
/// decided: no deadline. By one warp of the block that has done its part last.
__device__ __forceinline__ bool is_to_mend(const std::uint32_t* read, int lane) {
  std::uint32_t word = read_word::kDecided;
  if (lane == 0) {
    do {
      word = load_acquire_device(read);
    } while ((word & read_word::kDecided) == 0);
  }
  word = __shfl_sync(~0U, word, 0);
  return (word & ~read_word::kDecided) >= read_word::kMends;
}

/// By a whole block, once in a kernel, when it has read all that it will read of peers, and stored what it will store.
///
/// read, done     where blocks are counted
/// mends          of any thread: something of what was read is to be mended
/// others_read    others read this rank's rows in place: they are awaited
/// mend()         mends it, by the whole last block, before the peers are told
/// settle(lane)   says what the half came to, by one warp of the last block
template <typename Mend, typename Settle>
__device__ __forceinline__ void end_part(const Geometry& g, protocol::Kind kind, Halves halves,
                                         std::uint64_t timeout_ns, const Block& block,
                                         std::uint32_t* read, std::uint32_t* done, bool mends,
                                         bool others_read, const Seat& seat, const Mend& mend,
                                         const Settle& settle) {
  constexpr int kTellWarp = 0;
  constexpr int kSettleWarp = 1;
  static_assert(kSettleWarp < kBlockWarps);
  __shared__ bool to_mend;
  const std::uint64_t epoch = block.received.epoch + 1;
  const bool block_mends = __syncthreads_or(static_cast<int>(mends)) != 0;
  if (seat.warp == kTellWarp && halves.receive) {
    const std::uint32_t count = block_mends ? 1 + read_word::kMends : 1;
    if (tell_once_read(g, kind, block, read, count, seat.lane) && others_read) {
      await_readers(g, kind, epoch, suspects_by_now(g), timeout_ns, seat.lane);
    }
  }
  if (seat.warp == kSettleWarp) {
    std::uint32_t before = 0;
    if (seat.lane == 0) before = count_up(done);  // Pairs with that of the last block.
    before = __shfl_sync(~0U, before, 0);
    bool last = static_cast<int>(before) + 1 == worker_blocks(g);
    if (last && seat.lane == 0) *done = 0;
    const bool early = mutant(KernelMutant::published_by_the_first);
    if (early) last = before == 0;
    const bool is_last_to_mend = last && halves.receive && !early && is_to_mend(read, seat.lane);
    __syncwarp();  // All of it sees what the other blocks have done.
    if (last && !is_last_to_mend) settle(seat.lane);
    if (seat.lane == 0) to_mend = is_last_to_mend;
  }
  __syncthreads();
  if (!to_mend) return;
  mend();
  __syncthreads();
  if (seat.warp != kTellWarp) return;
  settle(seat.lane);
  tell(g, kind, epoch, block.suspects, seat.lane);
  if (others_read) await_readers(g, kind, epoch, suspects_by_now(g), timeout_ns, seat.lane);
}

}  // namespace sluice::engine::cuda
