// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/ledger.cuh"
#include "engine/cuda/operation.cuh"
#include "engine/cuda/recorder.cuh"
#include "engine/cuda/throughput.hpp"

/// Throughput mode: what dispatch and combine have in common.
namespace sluice::engine::cuda {

/// Which thread this is, and the number of its warp among all of the launch: neighbours are on different multiprocessors.
struct Seat {
  int lane;
  int warp;  // of the block
  int place;
  int warps;
  static __device__ __forceinline__ Seat own(const Geometry& g) {
    const int blocks = worker_blocks(g);
    const int warp = static_cast<int>(threadIdx.x / 32);
    return {static_cast<int>(threadIdx.x % 32), warp, warp * blocks + static_cast<int>(blockIdx.x),
            blocks * kBlockWarps};
  }
};

/// An operation, or a half of it: what it begins with, and ends with. By a whole block, which knows that once it has met.
class Part {
 public:
  const Seat seat;
  Recorder<true> recorder;

  __device__ __forceinline__ Part(const Geometry& g, protocol::Kind kind, Halves half,
                                  std::uint64_t timeout_ns, Block& block)
      : seat(Seat::own(g)), recorder(g.recording), g_(g), kind_(kind), half_(half), block_(block) {
    if (seat.warp == kOpenWarp) open(g, kind, half.send, timeout_ns, seat.lane, block);
  }
  __device__ __forceinline__ void meet() {
    __syncthreads();
    recorder.join(kind_, (half_.send ? block_.sent : block_.received).epoch + 1);
  }
  __device__ __forceinline__ void close_half() {
    if (seat.warp == kCloseWarp) close(g_, kind_, half_, block_, seat.lane);
    recorder.mark(Phase::wait);
    recorder.finish(Role::worker);
  }

 private:
  const Geometry& g_;
  protocol::Kind kind_;
  Halves half_;
  const Block& block_;
};

/// What a cell of throughput mode says, in two packets: { tag, word, signature, tokens } and { tag, stride, offset }, where
/// rows lie that are read in place (InPlace).
namespace throughput_word {
inline constexpr std::uint32_t kRecords = cell_word::kNothing - 1U;
/// In `tokens`.
inline constexpr std::uint32_t kStaging = window::kStagingFlag;
/// The same bit, in a combine: rows of who reads the cell lie one behind the other from `offset` on, in the order of its records.
inline constexpr std::uint32_t kNumbered = kStaging;
inline constexpr std::uint32_t kTokens = kStaging - 1U;
static_assert(kMaxTokens <= kRecords && kMaxTokens <= kTokens);
}  // namespace throughput_word

/// Whether a rank is of another node.
__device__ __forceinline__ bool is_far(const Geometry& g, int peer) {
  return g.published != nullptr && ((g.near >> peer) & 1U) == 0;
}

/// Tells the peers what comes of this operation; all that was done before fence_system() is seen by who has seen the cell. word: of
/// rank `lane`. form: of a row, for progress threads (LaneView). By one warp. Pairs with read_cell().
__device__ __forceinline__ void publish_fenced(const Geometry& g, protocol::CellKind kind, int bank,
                                               std::uint32_t tag, std::uint32_t word,
                                               std::uint32_t signature, std::uint32_t tokens,
                                               InPlace own, std::uint32_t form,
                                               std::uint32_t suspects, int lane) {
  if (lane >= g.ranks || ((suspects >> lane) & 1U) != 0) return;
  if (is_far(g, lane)) own = {form, 0};  // Nothing is read in place from there.
  std::byte* const at = out_at(g, lane, g.layout.cell(kind, bank));
  store_packet(at, make_uint4(tag, word, signature, tokens));
  store_packet(at + window::kFormPacket * window::kPacketBytes,
               make_uint4(tag, own.stride, static_cast<std::uint32_t>(own.offset),
                          static_cast<std::uint32_t>(own.offset >> 32)));
}

__device__ __forceinline__ void publish(const Geometry& g, protocol::CellKind kind, int bank,
                                        std::uint32_t tag, std::uint32_t word,
                                        std::uint32_t signature, std::uint32_t tokens, InPlace own,
                                        std::uint32_t form, std::uint32_t suspects, int lane) {
  fence_system();
  publish_fenced(g, kind, bank, tag, word, signature, tokens, own, form, suspects, lane);
}

/// Counts what is there for other nodes, `done` of `all` parts that an operation has, for the progress thread to take once
/// all are. Not blocks, nor warps: those that find no room until late are not waited for. By one thread, after a barrier with
/// those that stored it.
__device__ __forceinline__ void count_sent(const Geometry& g, protocol::CellKind kind,
                                           std::uint64_t epoch, std::uint32_t* sent,
                                           std::uint32_t done, std::uint32_t all) {
  if (g.published == nullptr) return;
  fence_system();
  const std::uint32_t before = atomicAdd(sent, done);
  if (before + done != all && !mutant(KernelMutant::sent_too_early)) return;
  fence_system();  // After what others did before they counted.
  // Pairs with the load in LaneTraffic::published().
  store_relaxed(
      reinterpret_cast<std::uint64_t*>(g.published + PublishedWords::at(static_cast<int>(kind), 0)),
      PublishedWords::word(epoch, 1));
}

/// A peer's cell, of rank `lane`.
struct Arrival {
  int records = 0;
  int tokens = 0;
  InPlace rows;
  bool staging = false;  // Of a combine: numbered.
  bool missing = false;
  bool refused = false;
  bool mismatched = false;
};

/// Of a rank's cell: whether it is of this operation, and what it says.
template <bool kAcquire = false>
__device__ __forceinline__ bool read_cell(const std::byte* at, std::uint32_t tag,
                                          std::uint32_t signature, Arrival& arrival) {
  // Pairs with publish(), or publish_fenced(), of the peer.
  const uint4 packet = load_packet_as<kAcquire>(at);
  const uint4 rows = load_packet_as<kAcquire>(at + window::kFormPacket * window::kPacketBytes);
  const bool come = packet.x == tag && rows.x == tag;
  if (!come && !mutant(KernelMutant::any_arrival_taken)) return false;
  arrival.refused = (packet.y & cell_word::kRefused) != 0;
  arrival.mismatched =
      !arrival.refused && packet.z != signature && !mutant(KernelMutant::signature_ignored);
  if (arrival.refused || arrival.mismatched) return true;
  if ((packet.y & cell_word::kNothing) == 0) {
    arrival.records = static_cast<int>(packet.y & throughput_word::kRecords);
  }
  arrival.tokens = static_cast<int>(packet.w & throughput_word::kTokens);
  arrival.staging = (packet.w & throughput_word::kStaging) != 0;
  arrival.rows = {rows.z | std::uint64_t{rows.w} << 32, rows.y};
  return true;
}

/// Awaits the cells of all ranks, by one warp: lane r that of rank r. Whoever meets this warp at a barrier afterwards
/// sees what came before the cells.
__device__ __forceinline__ Arrival await_arrivals(const Geometry& g, protocol::CellKind kind,
                                                  int bank, std::uint32_t tag,
                                                  std::uint32_t signature, const Block& block,
                                                  std::uint64_t timeout_ns, int lane) {
  Arrival arrival;
  if (lane < g.ranks) {
    const std::byte* const at = in_at(g, lane, g.layout.cell(kind, bank));
    // Of a suspect what is there counts, but it is not waited for.
    const bool waits = ((block.suspects >> lane) & 1U) == 0;
    std::uint64_t began = 0;
    Patience patience(g, timeout_ns, began);
    WaitClock wait;
    bool come = read_cell<true>(at, tag, signature, arrival);
    while (!come && waits && !arrival.missing) {
      arrival.missing = patience.spent(lane);
      wait.poll();
      come = read_cell<true>(at, tag, signature, arrival);
    }
    arrival.missing = !come;
    count_wait(g, lane, wait.ns());
  }
  __syncwarp();
  return arrival;
}

/// Says to the peers in `suspects` that they are given up, before anything is overwritten that they may be reading. By
/// one warp. Pairs with is_accused().
__device__ __forceinline__ void accuse(const Geometry& g, std::uint32_t suspects, int lane) {
  if (lane >= g.ranks || lane == g.rank || ((suspects >> lane) & 1U) == 0) return;
  store_relaxed(
      reinterpret_cast<std::uint64_t*>(out_at(g, lane, g.layout.told(protocol::Kind::dispatch)) +
                                       g.layout.accusation()),
      1);
}
/// Whether `peer` has given this rank up: what was read of it may have been overwritten. By who knows that all loads of it have
/// returned (tell_once_read() has the argument).
__device__ __forceinline__ bool is_accused(const Geometry& g, int peer) {
  if (mutant(KernelMutant::accusation_ignored)) return false;
  return load_relaxed(reinterpret_cast<const std::uint64_t*>(
             in_at(g, peer, g.layout.told(protocol::Kind::dispatch)) + g.layout.accusation())) != 0;
}

/// Rows to other nodes lie in one place for all of them: who was given up there tells no more what it has read, but what it was
/// sent may still be on its way: for longer than a call's deadline, it may be. By a warp of every block, before it overwrites
/// anything.
__device__ __forceinline__ void await_flushed(const Geometry& g, const Desk& desk,
                                              const Block& block, std::uint64_t timeout_ns) {
  if (g.published == nullptr || (block.suspects & ~g.near) == 0) return;
  // Pairs with LaneReceipts::tell_flushed().
  const auto* const at = reinterpret_cast<const std::uint64_t*>(
      in_at(g, g.rank, g.layout.told(protocol::Kind::dispatch)));
  const auto banks = static_cast<std::uint64_t>(g.layout.shape().banks);
  if (timeout_ns != 0) timeout_ns = max(timeout_ns, desk.settle_ns);
  std::uint64_t began = 0;
  Patience patience(g, timeout_ns, began);
  bool gave_up = false;
  while (load_relaxed(at) + banks < block.sent.epoch + 1 && !gave_up) {
    gave_up = patience.spent(g.rank);
  }
}

/// Where rows are read in place: waits until all peers have told that they have read this rank's, so that the caller may
/// overwrite them. Who does not is given up, and told so, as is who was given up before: it may come yet, and find this rank's
/// cell. By one warp, after it has told the peers itself.
__device__ __forceinline__ void await_readers(const Geometry& g, protocol::Kind kind,
                                              std::uint64_t epoch, std::uint32_t suspects,
                                              std::uint64_t timeout_ns, int lane) {
  bool gave_up = false;
  if (mutant(KernelMutant::readers_not_awaited)) return;
  if (lane < g.ranks && lane != g.rank && ((suspects >> lane) & 1U) == 0) {
    // Pairs with tell() or tell_once_read() of the peer. Nothing is read after it.
    const auto* const at =
        reinterpret_cast<const std::uint64_t*>(in_at(g, lane, g.layout.told(kind)));
    std::uint64_t began = 0;
    Patience patience(g, timeout_ns, began);
    while (load_relaxed(at) < epoch && !gave_up) gave_up = patience.spent(lane);
  }
  const std::uint32_t accused = suspects | lanes_with(gave_up);
  if (accused == 0) return;
  accuse(g, accused, lane);
  fence_system();
}

/// Numbers from 0 on, each of which one warp of a launch takes: a block that finds no room until late, or none, is not
/// waited for. By whole warps.
class Queue {
 public:
  /// next: in device memory, 0 when the launch begins.
  __device__ __forceinline__ Queue(std::uint32_t* next, int lane) : next_(next), lane_(lane) {}

  /// One is on its way, of however many there are: before the first take().
  __device__ __forceinline__ void ask_ahead() {
    if (lane_ == 0) ahead_ = atomicAdd(next_, 1U);
  }
  /// Of so many.
  __device__ __forceinline__ void open(int count) { count_ = static_cast<unsigned>(count); }
  /// The next one, or below zero: there is none. Asks for the one after it.
  __device__ __forceinline__ int take() {
    const unsigned number = __shfl_sync(~0U, ahead_, 0);
    if (number >= count_) return -1;
    ask_ahead();
    return static_cast<int>(number);
  }
  /// The same of one that was not asked for ahead: who is long in coming back keeps none for which others wait.
  __device__ __forceinline__ int take_now() {
    ask_ahead();
    const unsigned number = __shfl_sync(~0U, ahead_, 0);
    return number < count_ ? static_cast<int>(number) : -1;
  }

 private:
  std::uint32_t* next_;
  int lane_;
  unsigned count_ = 0;
  unsigned ahead_ = 0;  // of lane 0
};

}  // namespace sluice::engine::cuda
