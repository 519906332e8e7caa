// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cuda/kernels.hpp"

/// From where the network brings it (FarLanes) into the lanes of GPUs of this node: by blocks that go on looking for more, as
/// progress threads do, since to launch one takes longer than what it does: some of every operation (carriers.cuh),
/// and a kernel of its own for what comes otherwise (ferry.cu).
namespace sluice::engine::cuda {

inline constexpr std::uint32_t kFerryRing = 2048;  // Items of each ring.
/// Of an item, at most. All packets of the items that a block finds at once its warps share.
inline constexpr std::uint32_t kFerryPackets = 2048;

/// Something that is copied, or a word that is told to this rank, in a ring:
///   low  := [to: offset in the lane : 32] [from: in host memory, or that of rows, in packets : 32]
///   high := [mark : 32] [ranks whose lanes : 16] [packets : 16]
///   mark := [turn of the ring : 24] [source : 4] [what : 4]
/// A word is in the place of `from` and of the lower half of `high`. The mark says that the item is there: it is written
/// last, and a GPU reads 16 bytes of host memory that lie in one line at once.
///
/// In throughput mode rows do not say by themselves that they have come:
///   kRow: of a dispatch, into this rank's landing; then the tag, as the token's staged word, into the lanes of the ranks
///   kAnswer: of a combine, with all its rows and row weights, into this rank's lane; the answer last
///   low  := [bank : 5] [token : 27] [tag : 32], packets of a row (of a kAnswer or kSumAnswer: 0, if it has none)
/// With `reduce = node`, in both modes:
///   kSum: of a combine, added up from what ranks of this node have answered a home: their places in place of `ranks`; into
///         what this rank sends to that home
///   kSumAnswer: like kAnswer, from another node's sums into the lane for them
///   kSummed: a word like kTold, into that lane
struct alignas(16) FerryItem {
  static constexpr std::uint32_t kPackets = 0;
  static constexpr std::uint32_t kTold = 1;
  static constexpr std::uint32_t kRow = 2;
  static constexpr std::uint32_t kAnswer = 3;
  /// A one, as a word, into lanes.
  static constexpr std::uint32_t kAccused = 4;
  static constexpr std::uint32_t kSumOfBf16 = 5;
  static constexpr std::uint32_t kSumOfF16 = 6;
  static constexpr std::uint32_t kSumOfF32 = 7;
  static constexpr std::uint32_t kSumAnswer = 8;
  static constexpr std::uint32_t kSummed = 9;
  /// As kPackets, from the memory of rows.
  static constexpr std::uint32_t kRowPackets = 10;
  static constexpr int kTokenBits = 27;
  static_assert(kMaxTokens <= 1 << kTokenBits && kBanksMax <= 1 << (32 - kTokenBits));
  /// Beside the packets of a kAnswer: it has a row for each route.
  static constexpr std::uint64_t kRowPerRoute = 0x8000;
  static_assert(kMaxHidden * sizeof(float) / window::kPacketBytes < kRowPerRoute);

  std::uint64_t low = 0;
  std::uint64_t high = 0;

  /// The number-th item of its ring, counted from 0. Unlike what was there before, which at first is zero.
  SLUICE_INLINE static constexpr std::uint32_t turn(std::uint64_t number) {
    return static_cast<std::uint32_t>(number / kFerryRing + 1) & 0xffffffU;
  }
  // Parts of the mark, as bits of `high`.
  static constexpr std::uint64_t turn_bits(std::uint64_t number) {
    return std::uint64_t{turn(number)} << 40;
  }
  static constexpr std::uint64_t label_bits(int source, std::uint32_t what) {
    return std::uint64_t{static_cast<std::uint32_t>(source) << 4 | what} << 32;
  }
};
static_assert(sizeof(FerryItem) == 16 && kPeersMax <= 16);

/// Words in host memory, a line each: behind how many items of each ring have been carried,
inline constexpr int kFerryEndedLine = kFerryBlocks;        // the last launch that has ended, and
inline constexpr int kFerryExpectsLine = kFerryBlocks + 1;  // whether more items are expected.
inline constexpr int kFerryLines = kFerryBlocks + 2;

/// Host memory of the items of all rings; with those words behind them.
inline constexpr std::size_t kFerryItemsBytes = kFerryBlocks * kFerryRing * sizeof(FerryItem);
inline constexpr std::size_t kFerryHostBytes = kFerryItemsBytes + kFerryLines * window::kLineBytes;

/// Who has a ring (ferry_block.cuh):
///   word := [duties : 14] [items : 48] [stays : 1] [taken : 1]
/// Whether a block has it now; whether that is one of the ferry's own kernel, which stays for operations that have left it the
/// duty; how many of the ring's items those have carried who have had it before (2^48: at a million a second, nine years); how often a
/// duty has been left to who has it, modulo 2^14.
struct RingWord {
  static constexpr std::uint64_t kTaken = 1;
  static constexpr std::uint64_t kStays = 2;
  static constexpr std::uint64_t kDuty = std::uint64_t{1} << 50;

  SLUICE_INLINE static constexpr std::uint64_t free(std::uint64_t items) {
    return items << 2 & (kDuty - 1);
  }
  SLUICE_INLINE static constexpr std::uint64_t items(std::uint64_t word) {
    return (word & (kDuty - 1)) >> 2;
  }
};

/// Device memory, zero in the beginning.
struct FerryState {
  std::uint64_t rings[kFerryBlocks];  // RingWord
  std::uint64_t closing;              // Number of the launch of the ferry's own kernel that ends.
  std::uint32_t ended_blocks;
};

/// What whoever carries must know.
struct FerryArgs {
  // As this rank's GPU sees them: its host memory, and that of rows (FarLanes).
  std::byte* host = nullptr;
  std::byte* rows = nullptr;
  std::byte* windows[kPeersMax] = {};  // Of the ranks of this node.
  // Throughput mode, by source: its lane, to what offsets of all but rows are added, and to what those of rows are; its rows,
  // and their landings in this rank's window.
  std::byte* lanes_in[kPeersMax] = {};
  std::byte* row_lanes_in[kPeersMax] = {};
  std::byte* landed[kPeersMax] = {};
  std::size_t landings[kPeersMax] = {};
  // With `reduce = node`. By home that this rank serves: where in this rank's window its neighbours' answers are, the
  // first one's, and the lane to which their sums go. By source: where in this rank's window those of its node go.
  std::size_t partials[kPeersMax] = {};
  std::size_t partial_stride = 0;
  std::byte* lanes_out[kPeersMax] = {};
  std::byte* row_lanes_out[kPeersMax] = {};
  std::size_t sums[kPeersMax] = {};
  int hidden = 0;
  int rank = 0;
  window::PacketLayout layout;
  const FerryItem* items = nullptr;  // [kFerryBlocks][kFerryRing], in host memory.
  FerryState* state = nullptr;
  Worked* worked = nullptr;
  std::byte* counts = nullptr;  // Lines in host memory: see kFerryLines.
};

/// Both return a cudaError_t. number: of the launch, from 1.
int launch_ferry(const FerryArgs& args, std::uint64_t number, void* stream);
int load_ferry_kernel();

}  // namespace sluice::engine::cuda
