// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include "engine/cuda/packets.cuh"
#include "engine/cuda/waiting.cuh"

/// What every operation begins and ends with.
namespace sluice::engine::cuda {

/// What a block knows before it does anything.
struct Block {
  Progress sent;
  Progress received;
  std::uint32_t suspects;
};

/// A number that says whether two ranks made the same call (host and device).
__host__ __device__ __forceinline__ std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t z = a + 0x9E3779B97F4A7C15ULL * (b + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

/// By one thread.
__device__ __forceinline__ void read_epochs(const Geometry& g, protocol::Kind kind, Block& block) {
  const int k = static_cast<int>(kind);
  block.sent = g.state->sent[k][blockIdx.x];
  block.received = g.state->received[k][blockIdx.x];
  block.suspects = g.state->suspects;
}

/// The guard of a send half, by one warp of every block; lane r watches peer r.
class Guard {
 public:
  /// Asks for what the peers have told.
  __device__ Guard(const Geometry& g, protocol::Kind kind, int lane) : peer_(lane) {
    if (lane >= g.ranks || lane == g.rank) return;
    at_ = reinterpret_cast<const std::uint64_t*>(in_at(g, g.layout.told(lane, kind)));
    told_ = load_acquire(at_);  // Pairs with tell() of the peer.
  }
  /// Waits until what `epoch` overwrites has been read.
  __device__ void pass(const Geometry& g, std::uint64_t epoch, std::uint32_t suspects,
                       std::uint64_t timeout_ns) {
    const auto banks = static_cast<std::uint64_t>(g.layout.shape().banks);
    if (at_ == nullptr || epoch <= banks || ((suspects >> peer_) & 1U) != 0) return;
    Patience patience(g, timeout_ns);
    while (told_ < epoch - banks) {
      if (patience.spent(peer_)) return;
      told_ = load_acquire(at_);
    }
  }

 private:
  int peer_;
  const std::uint64_t* at_ = nullptr;
  std::uint64_t told_ = 0;
};

/// Tells the peers that everything of `received` was read and emptied, by kernels that have ended.
/// By one warp of one block. Pairs with the guard of the peer.
__device__ __forceinline__ void tell(const Geometry& g, protocol::Kind kind, std::uint64_t received,
                                     std::uint32_t suspects, int lane) {
  if (lane >= g.ranks || lane == g.rank || ((suspects >> lane) & 1U) != 0) return;
  store_release(reinterpret_cast<std::uint64_t*>(out_at(g, lane, g.layout.told(g.rank, kind))),
                received);
}

/// End of a block's part. There is one word for every block that may ever run, so that grids may
/// differ from launch to launch.
__device__ __forceinline__ void close(const Geometry& g, protocol::Kind kind, Halves halves,
                                      const Block& block) {
  const int k = static_cast<int>(kind);
  const auto banks = static_cast<std::uint32_t>(g.layout.shape().banks);
  const auto next = [&](Progress progress) {
    const std::uint32_t bank = progress.bank + 1;
    return Progress{progress.epoch + 1, bank == banks ? 0 : bank};
  };
#pragma unroll 1
  for (int at = static_cast<int>(blockIdx.x + gridDim.x * threadIdx.x); at < kBlocksMax;
       at += static_cast<int>(gridDim.x) * kBlockThreads) {
    if (halves.send) g.state->sent[k][at] = next(block.sent);
    if (halves.receive) g.state->received[k][at] = next(block.received);
  }
}

/// Numbers of records that stand for something else.
enum class CellCode : std::int32_t { refused = -1, nothing = -2 };

__device__ __forceinline__ void send_cell(const Geometry& g, int peer, protocol::CellKind kind,
                                          int bank, std::uint32_t tag, int records,
                                          std::uint64_t signature) {
  store_packet(
      out_at(g, peer, g.layout.cell(g.rank, kind, bank)),
      make_uint4(tag, static_cast<std::uint32_t>(records), static_cast<std::uint32_t>(signature),
                 static_cast<std::uint32_t>(signature >> 32)));
}

/// What the peers' cells say: lane r has that of rank r.
class Cells {
 public:
  __device__ Cells(const Geometry& g, protocol::CellKind kind, int bank, std::uint32_t tag,
                   std::uint64_t signature, int lane)
      : at_(in_at(g, g.layout.cell(lane < g.ranks ? lane : 0, kind, bank))),
        tag_(tag),
        signature_(signature),
        come_(lane >= g.ranks) {}

  /// Looks once more. Whether those of all lanes up to `last` are known.
  __device__ bool look(int last, int lane, Patience& patience) {
    if (!come_) {
      const uint4 cell = load_packet(at_);  // Pairs with send_cell() of the peer.
      if (cell.x == tag_) {
        come_ = true;
        const int records = static_cast<int>(cell.y);
        refused_ = records == static_cast<int>(CellCode::refused);
        mismatched_ = !refused_ && (cell.z != static_cast<std::uint32_t>(signature_) ||
                                    cell.w != static_cast<std::uint32_t>(signature_ >> 32));
        records_ = refused_ || mismatched_ || records < 0 ? 0 : records;
      } else if (patience.spent(lane)) {
        come_ = missing_ = true;
      }
    }
    return __all_sync(~0U, come_ || lane > last);
  }
  __device__ void await(int last, int lane, Patience& patience) {
    while (!look(last, lane, patience)) {
    }
  }

  __device__ int records(int rank) const { return __shfl_sync(~0U, records_, rank); }
  /// Records of all ranks below.
  __device__ int records_before(int rank, int lane) const {
    return __reduce_add_sync(~0U, lane < rank ? records_ : 0);
  }
  /// Ranks with records; those who refused, differ, or are missing.
  __device__ std::uint32_t senders() const { return __ballot_sync(~0U, records_ > 0); }
  __device__ std::uint32_t refused() const { return __ballot_sync(~0U, refused_); }
  __device__ std::uint32_t mismatched() const { return __ballot_sync(~0U, mismatched_); }
  __device__ std::uint32_t missing() const { return __ballot_sync(~0U, missing_); }

 private:
  const std::byte* at_;
  std::uint32_t tag_;
  std::uint64_t signature_;
  int records_ = 0;
  bool come_;
  bool refused_ = false;
  bool mismatched_ = false;
  bool missing_ = false;
};

/// Adds to the board what the peers' cells of one operation say.
static __device__ __noinline__ void report_cells(Totals* totals, std::uint32_t missing,
                                                 std::uint32_t refused, std::uint32_t mismatched) {
  if (missing != 0) atomicOr_system(&totals->missing, missing);
  if (refused != 0) atomicOr_system(&totals->refused, refused);
  if (mismatched != 0) atomicOr_system(&totals->mismatched, mismatched);
}

template <typename Kernel, typename Args, typename... More>
int launch_kernel(Kernel kernel, const Args& args, const Launch& launch, std::size_t shared,
                  More... more) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(launch.blocks));
  config.blockDim = dim3(kBlockThreads);
  config.dynamicSmemBytes = shared;
  config.stream = static_cast<cudaStream_t>(launch.stream);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = launch.overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args, more...);
}

template <typename Kernel>
int blocks_per_processor(Kernel kernel, std::size_t shared) {
  int blocks = 0;
  const cudaError_t error =
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kBlockThreads, shared);
  return error == cudaSuccess ? blocks : 0;
}

}  // namespace sluice::engine::cuda
