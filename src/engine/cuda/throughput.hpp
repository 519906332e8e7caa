// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/kernels.hpp"

/// Throughput mode: what the halves of an operation, and blocks of one kernel, leave for each other. docs/cuda-engine.md has
/// the protocol.
namespace sluice::engine::cuda {

/// Rows that lie in registered memory, from where peers read them: no stage, no slot. Offset from the memory's base, stride
/// in bytes; 0: the rows lie elsewhere.
struct InPlace {
  std::uint64_t offset = 0;
  std::uint32_t stride = 0;
  bool scales = false;  // Right behind each row, as they travel.
};

/// What is known of a dispatch's peers once all of their cells have come, or will not.
struct Arrivals {
  std::uint32_t given;        // Ranks whose part counts.
  std::uint32_t staging;      // Of these, those that say of every row that it is there.
  std::uint32_t staged_rows;  // Of these, those of which rows are staged, not scales alone.
  std::int32_t tokens[kPeersMax];
  std::int32_t
      records[kPeersMax + 1];        // Where those of a source begin, in the order of the sources.
  const std::byte* rows[kPeersMax];  // Where those to be pulled begin.
  std::int64_t stride[kPeersMax];    // of these
};

/// What the blocks and warps of a dispatch, or of a half, leave for each other. The last block sets it to zero.
struct DispatchNotes {
  /// What blocks, then warps, take one by one.
  enum Items { kShares, kBatches, kRecords, kItems };

  std::uint32_t next[kItems];
  std::uint32_t numbered;                      // 1: Arrivals, and where rows begin, are there.
  std::uint32_t staged[window::kStagedParts];  // Rows of each part that are in the stage.
  std::uint32_t sent;                          // Of what other nodes are sent: see count_sent().
  std::uint32_t read;                          // Blocks that have read all: see read_word.
  std::uint32_t missing;                       // Ranks whose records, or rows, did not come.
  unsigned long long waited_ns[kPeersMax];     // By the warp that waited longest.
};

/// What the warps of a combine leave for its last block, which sets it to zero.
struct CombineNotes {
  /// What warps take one by one.
  enum Items { kWeights, kRecords, kTokens, kItems };

  std::uint32_t next[kItems];
  std::uint32_t sent[2];  // Of what other nodes are sent: weights, then records. See count_sent().
  std::uint32_t read;     // Blocks that have read all: see read_word.
  std::uint32_t missing;  // Sets of ranks.
  std::uint32_t refused;
  std::uint32_t mismatched;
  unsigned long long lost_routes;
  unsigned long long waited_ns[kPeersMax];  // By the warp that waited longest.
};

/// Device memory of one communicator. Halves of a kind follow one another, so one of each will do, but for what lies
/// between the halves of one operation.
struct Desk {
  enum Half { kSend, kReceive, kHalves };

  /// dispatch, send half: [kBlocksMax][E + R], of a share of the tokens: how many go to each expert, then to each rank. Below
  /// them the tag of the operation.
  std::uint64_t* counts = nullptr;
  // Between its halves: routing as used, [M][K], and the numbers of records, [M][R].
  std::int32_t* ids = nullptr;
  float* weights = nullptr;
  std::int32_t* record_numbers = nullptr;
  std::uint32_t* bad_routes = nullptr;
  // receive halves
  Arrivals* arrivals = nullptr;        // dispatch
  std::int32_t* first_rows = nullptr;  // [R][L]: of a source's tokens with the expert
  // Of a kind.
  std::uint32_t* done = nullptr;  // [kHalves]: blocks of the launch that have done their part
  // [kHalves]; whole operations use those of their receive half.
  DispatchNotes* dispatch_notes = nullptr;
  CombineNotes* combine_notes = nullptr;
  /// By source, where the rows that it stages are read from: its stages or, of a rank of another node, its landings in the
  /// window of the rank that it sends them to. Then every rank's registered memory.
  std::byte* stages[kPeersMax] = {};
  std::byte* heaps[kPeersMax] = {};
  // With several nodes (FarLanes): rows that go to other nodes, and, in host memory, the ranks that each goes to. Null on one
  // node.
  std::byte* far_stages = nullptr;
  std::uint32_t* host_targets = nullptr;  // [B][M]
  std::uint64_t settle_ns =
      0;        // As long as what was sent to a rank that is gone may be on its way.
  InPlace own;  // This rank's rows of this call.
  /// Shared memory of a block through which rows are copied; 0: the GPU, or the code that runs there, has no engine for it.
  int ring_bytes = 0;
};

/// All return a cudaError_t. The halves that args.halves names.
int launch_throughput_dispatch(const DispatchArgs& args, const Desk& desk, const Launch& launch);
/// Tells `args` into what pieces rows are cut.
int launch_throughput_combine(CombineArgs& args, const Desk& desk, const Launch& launch);
int load_throughput_dispatch_kernels();
/// Of the current GPU: Desk::ring_bytes.
int throughput_ring_bytes();
int load_throughput_combine_kernels();

}  // namespace sluice::engine::cuda
