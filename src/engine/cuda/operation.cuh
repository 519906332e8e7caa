// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "engine/cuda/counters.cuh"
#include "engine/cuda/packets.cuh"
#include "engine/cuda/waiting.cuh"

/// What every operation begins and ends with.
namespace sluice::engine::cuda {

/// Blocks of a launch but for those that carry (carriers.cuh): the first ones.
__device__ __forceinline__ int worker_blocks(const Geometry& g) {
  return static_cast<int>(gridDim.x) - g.carriers;
}

/// What a block knows before it does anything.
struct Block {
  Progress sent;
  Progress received;
  std::uint32_t suspects;
  std::uint32_t absent;
  /// When a thread of the block had polled so often that it looked up, or 0.
  std::uint64_t weary_since;
};

/// Warps that do more than their share.
inline constexpr int kOpenWarp = kBlockWarps / 2;
inline constexpr int kCloseWarp = kBlockWarps / 2 - 1;
inline constexpr int kTouchWarp = kBlockWarps / 2 - 2;
inline constexpr int kBooksWarp = kBlockWarps / 2 - 3;

/// Waits until what a block overwrites has been read. By one warp; `block` is what it has found.
static __device__ __noinline__ void await_guard(const Geometry* geometry, protocol::Kind kind,
                                                std::uint64_t timeout_ns, Block* block) {
  const Geometry& g = *geometry;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::uint64_t epoch = block->sent.epoch + 1;
  const auto banks = static_cast<std::uint64_t>(g.layout.shape().banks);
  std::uint32_t suspects = block->suspects;
  __syncwarp();
  bool gave_up = false;
  std::uint64_t began = 0;
  if (lane < g.ranks && lane != g.rank && ((suspects >> lane) & 1U) == 0) {
    const auto* const at =
        reinterpret_cast<const std::uint64_t*>(in_at(g, lane, g.layout.told(kind)));
    Patience patience(g, timeout_ns, began);
    while (!gave_up && load_relaxed(at) + banks < epoch) gave_up = patience.spent(lane);
  }
  suspects |= __ballot_sync(~0U, gave_up);                       // Nothing is written to them.
  if (__any_sync(~0U, gave_up)) suspects |= suspects_by_now(g);  // Nor to those who fall with them.
  const bool weary = __any_sync(~0U, began != 0);
  if (lane != 0) return;
  block->suspects = suspects;
  if (weary) block->weary_since = now_ns();
}

/// Reads where a block stands and, before it sends, waits until what it overwrites has been read: the
/// guard. By one warp of every block; lane r watches peer r.
__device__ __forceinline__ void open(const Geometry& g, protocol::Kind kind, bool sends,
                                     std::uint64_t timeout_ns, int lane, Block& block) {
  const int k = static_cast<int>(kind);
  Block b;
  b.sent = g.state->sent[k][blockIdx.x];
  b.received = g.state->received[k][blockIdx.x];
  b.suspects = g.state->suspects;
  b.absent = g.state->absent;
  b.weary_since = 0;
  bool closed = false;
  if (sends && lane < g.ranks && lane != g.rank) {
    // Pairs with tell() or tell_once_read() of the peer. Relaxed: what must come after it are stores, and none is made before
    // the branch on this value (PTX does not promise that, hardware does it); to acquire would empty the
    // L1, in front of all that is asked for first. So in await_guard().
    const std::uint64_t told =
        load_relaxed(reinterpret_cast<const std::uint64_t*>(in_at(g, lane, g.layout.told(kind))));
    const auto banks = static_cast<std::uint64_t>(g.layout.shape().banks);
    closed = told + banks < b.sent.epoch + 1 && ((b.suspects >> lane) & 1U) == 0;
  }
  if (lane == 0) block = b;
  if (__any_sync(~0U, closed)) {
    __syncwarp();
    await_guard(&g, kind, timeout_ns, &block);
  }
}

/// Tells the peers that everything of `received` was read and emptied, by kernels that have ended.
/// By one warp of one block. Pairs with open() of the peer.
__device__ __forceinline__ void tell(const Geometry& g, protocol::Kind kind, std::uint64_t received,
                                     std::uint32_t suspects, int lane) {
  if (lane >= g.ranks || lane == g.rank || ((suspects >> lane) & 1U) != 0) return;
  store_release(reinterpret_cast<std::uint64_t*>(out_at(g, lane, g.layout.told(kind))), received);
}
/// The same of what has been read only, as tell_once_read() knows it.
__device__ __forceinline__ void tell_read(const Geometry& g, protocol::Kind kind,
                                          std::uint64_t received, std::uint32_t suspects,
                                          int lane) {
  if (lane >= g.ranks || lane == g.rank || ((suspects >> lane) & 1U) != 0) return;
  store_relaxed(reinterpret_cast<std::uint64_t*>(out_at(g, lane, g.layout.told(kind))), received);
}

/// Tells the progress thread that what this block sends to other nodes is there. (Each for itself: to count them in GPU memory, and
/// have the last one say so, takes an atomic and another fence.) By whole blocks, each after its stores.
__device__ __forceinline__ void publish(const Geometry& g, protocol::CellKind kind,
                                        std::uint64_t epoch) {
  if (g.published == nullptr) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  fence_system();  // After the barrier: of all threads' stores.
  // Pairs with the load in LaneTraffic::published().
  store_relaxed(
      reinterpret_cast<std::uint64_t*>(
          g.published + PublishedWords::at(static_cast<int>(kind), static_cast<int>(blockIdx.x))),
      PublishedWords::word(epoch, static_cast<std::uint32_t>(worker_blocks(g))));
}

/// Notes for the next launch that this one has ended, by one warp of every block once it knows
/// `block`: nobody looks before the grid has ended. There is one word for every block that may ever
/// run, so that grids may differ from launch to launch.
__device__ __forceinline__ void close(const Geometry& g, protocol::Kind kind, Halves halves,
                                      const Block& block, int lane) {
  const int k = static_cast<int>(kind);
  const auto banks = static_cast<std::uint32_t>(g.layout.shape().banks);
  const auto next = [&](Progress progress) {
    const std::uint32_t bank = progress.bank + 1;
    return Progress{progress.epoch + 1, bank == banks ? 0 : bank};
  };
  const int blocks = worker_blocks(g);
#pragma unroll 1
  for (int at = static_cast<int>(blockIdx.x) + blocks * lane; at < kBlocksMax; at += blocks * 32) {
    if (mutant(KernelMutant::epoch_of_own_block) && at != static_cast<int>(blockIdx.x)) continue;
    if (halves.send) g.state->sent[k][at] = next(block.sent);
    if (halves.receive) g.state->received[k][at] = next(block.received);
  }
}

/// How many blocks share a multiprocessor's registers. Kernels of common calls with few tokens have them for themselves:
/// with fewer they would write some to memory and ask for less at once. Most run on every second multiprocessor (cut.hpp),
/// so that the next operation's blocks have the others.
constexpr int blocks_together(bool few_tokens) {
  return few_tokens ? 1 : 2;
}

constexpr int registers_of(bool few_tokens) {
  constexpr int kOfMultiprocessor = 64 << 10;
  return kOfMultiprocessor / kBlockThreads / blocks_together(few_tokens);
}

/// From this many blocks on, some have no pieces: heralds and keepers, who do what is needed once.
inline constexpr int kApartBlocks = 8;

/// Who does what. Heralds send what is no piece, keepers write what follows from it. The first blocks
/// are the first to run, so they are the heralds, for whom everybody waits.
struct Crew {
  int block;    // counted from the last one of the grid: workers, keepers, heralds
  int heralds;  // how many
  int keepers;
  int workers;  // blocks with pieces
  int herald;   // from 0 on, or below zero
  int keeper;
  bool works;

  __device__ __forceinline__ Role role() const {
    return herald >= 0 ? Role::herald : (keeper >= 0 ? Role::keeper : Role::worker);
  }

  Crew() = default;
  /// Work for so many heralds and keepers. There is one herald at least.
  __device__ __forceinline__ Crew(const Geometry& g, int for_heralds, int for_keepers) {
    const int blocks = worker_blocks(g);
    block = blocks - 1 - static_cast<int>(blockIdx.x);
    const bool apart = blocks >= kApartBlocks;
    const int most = max(blocks / kApartBlocks, 1);
    heralds = max(min(for_heralds, most), 1);
    keepers = min(for_keepers, most);
    workers = apart ? blocks - heralds - keepers : blocks;
    herald = block - (blocks - heralds);
    keeper = apart ? (herald < 0 ? block - workers : -1) : herald;
    works = block < workers;
  }
};

/// Parameters lie in a cold cache: asks for all of them at once. By one thread, in a kernel that starts
/// well before it may do anything; in one that does not, it would only be in the way.
template <typename Args>
__device__ __forceinline__ void touch_parameters(const Args& args, std::uint32_t* sink) {
  constexpr std::size_t kLine = 64;
  const auto* words = reinterpret_cast<const std::uint32_t*>(&args);
  std::uint32_t all = 0;
#pragma unroll
  for (std::size_t at = 0; at < sizeof(Args); at += kLine) all ^= words[at / 4];
  *static_cast<volatile std::uint32_t*>(sink) = all;
}

/// The second word of a cell.
namespace cell_word {
inline constexpr std::uint32_t kRefused = 1U << 31;
inline constexpr std::uint32_t kNothing = 1U << 30;  // combine: answers nothing to this peer
inline constexpr std::uint32_t kNumber = (1U << 10) - 1U;
inline constexpr int kTokensShift = 10;
static_assert(kTokensMax <= kNumber);
}  // namespace cell_word

/// Tells `peer` what comes: `word`, and `packets` of one record. kTokens: with a bit for every token,
/// of which lane w has those of the w-th 32. By one warp.
template <bool kTokens>
__device__ __forceinline__ void send_cell(const Geometry& g, int peer, protocol::CellKind kind,
                                          int bank, std::uint32_t tag, std::uint32_t word,
                                          std::uint32_t signature, int packets, std::uint32_t bits,
                                          int lane) {
  int all = window::kFormPacket + 1;
  uint4 packet = make_uint4(tag, word, signature, bits);
  if constexpr (kTokens) {
    all = window::cell_packets(g.layout.shape().tokens);
    packet.w = __shfl_sync(~0U, bits, 0);
    const int from = (1 + 3 * (lane - window::kFormPacket - 1)) & 31;
    const std::uint32_t first = __shfl_sync(~0U, bits, from);
    const std::uint32_t second = __shfl_sync(~0U, bits, (from + 1) & 31);
    const std::uint32_t third = __shfl_sync(~0U, bits, (from + 2) & 31);
    if (lane > window::kFormPacket) packet = make_uint4(tag, first, second, third);
  }
  if (lane == window::kFormPacket) {
    packet = make_uint4(tag, static_cast<std::uint32_t>(packets), 0, 0);
  }
  if (lane >= all) return;
  store_packet(out_at(g, peer, g.layout.cell(kind, bank)) + lane * window::kPacketBytes, packet);
}

/// What the peers' cells say: lane r has that of rank r.
struct PeerCell {
  std::uint32_t word = 0;
  bool refused = false;
  bool mismatched = false;
  bool missing = false;

  __device__ __forceinline__ void read(uint4 packet, std::uint32_t signature) {
    refused = (packet.y & cell_word::kRefused) != 0;
    mismatched = !refused && packet.z != signature && !mutant(KernelMutant::signature_ignored);
    word = packet.y;
  }
  __device__ __forceinline__ int records() const {
    return refused || mismatched || missing || (word & cell_word::kNothing) != 0
               ? 0
               : static_cast<int>(word & cell_word::kNumber);
  }
};

/// Awaits the cells of all peers. By one warp.
static __device__ __noinline__ PeerCell await_cells(const Geometry* g, protocol::CellKind kind,
                                                    int bank, std::uint32_t tag,
                                                    std::uint32_t signature,
                                                    std::uint64_t timeout_ns) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  PeerCell cell;
  if (lane < g->ranks) {
    const std::byte* const at = in_at(*g, lane, g->layout.cell(kind, bank));
    std::uint64_t began = 0;
    Patience patience(*g, timeout_ns, began);
    WaitClock wait;
    uint4 packet = load_packet(at);  // Pairs with send_cell() of the peer.
    while (packet.x != tag && !cell.missing && !mutant(KernelMutant::any_cell_taken)) {
      cell.missing = patience.spent(lane);
      wait.poll();
      packet = load_packet(at);
    }
    if (!cell.missing) cell.read(packet, signature);
    count_wait(*g, lane, wait.ns());
  }
  __syncwarp();
  return cell;
}

__device__ __forceinline__ std::uint32_t lanes_with(bool condition) {
  return __ballot_sync(~0U, condition);
}

/// Shared memory of a multiprocessor, percent: room for two blocks with the most, where there is as much as
/// on sm_90, and else all there is. The same for all kernels, since blocks that want it divided
/// otherwise do not run beside each other. On sm_90 kernels are slower with more (docs/performance).
inline constexpr int kSharedMemoryShare = 44;
inline constexpr int kSharedMemoryOfSm90 = 228 << 10;

/// Loads a kernel on the current GPU: later, that could wait for another that spins.
template <typename Kernel>
int load_kernel(Kernel kernel, int shared_bytes) {
  int device = 0;
  int shared_memory = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error =
      cudaDeviceGetAttribute(&shared_memory, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  if (error != cudaSuccess) return error;
  cudaFuncAttributes attributes;
  error = cudaFuncGetAttributes(&attributes, kernel);
  if (error != cudaSuccess) return error;
  // Asked for where it is more than a kernel has unasked.
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                              shared_memory >= kSharedMemoryOfSm90 ? kSharedMemoryShare : 100);
}

/// `args` are read where they lie: they are large.
template <typename... Args>
int launch_kernel(void (*kernel)(Args...), const Launch& launch, std::size_t shared,
                  const std::type_identity_t<std::remove_cvref_t<Args>>&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(launch.blocks));
  config.blockDim = dim3(kBlockThreads);
  config.dynamicSmemBytes = shared;
  config.stream = static_cast<cudaStream_t>(launch.stream);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = launch.overlap ? 1 : 0;
  return launch_in_place(config, kernel, args...);
}

}  // namespace sluice::engine::cuda
