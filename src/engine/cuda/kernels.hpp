// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "numeric/host_device.hpp"
#include "sluice/report.hpp"
#include "sluice/types.hpp"
#include "window/handle_layout.hpp"
#include "window/packet_layout.hpp"

/// What host and device of the CUDA engine share: arguments of the kernels, and their launches.
namespace sluice::engine::cuda {

struct FerryArgs;

/// Blocks that carry what comes from other nodes at the same time (ferry.hpp). Each has a ring of items in host memory. More than a
/// few are not needed to bring what a PCIe link can, and they take multiprocessors away.
inline constexpr int kFerryBlocks = 4;

/// Ranks that one communicator of this engine may have.
inline constexpr int kPeersMax = 16;
inline constexpr int kLocalBits = 12;
inline constexpr int kBlockThreads = 512;
inline constexpr int kBlockWarps = kBlockThreads / 32;
/// Blocks of one launch at most: two on every multiprocessor of the largest GPUs.
inline constexpr int kBlocksMax = 512;
inline constexpr int kBanksMax = 2 * kMaxInFlight + 1;
/// Tokens of one call in latency mode at most: a thread of a block for every one.
inline constexpr int kTokensMax = kBlockThreads;

/// A tensor's rows: [N, ...] or [L, slab_rows, ...]. Strides in bytes.
struct Grid {
  std::byte* base = nullptr;
  std::int32_t slab_rows = 0;  // 0: two dimensions, or slabs without gaps
  std::int64_t slab_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t element_stride = 0;
};

/// Division by a number that the host knows: one multiplication. Exact while numerator x divisor is
/// below 2^32; the largest here are tasks, 2^21 of them, by 256 steps of a row.
struct Divisor {
  std::uint32_t divisor = 1;
  std::uint32_t magic = 0;  // 2^32 / divisor, rounded up; not used for divisor 1

  Divisor() = default;
  explicit Divisor(int value) noexcept
      : divisor(static_cast<std::uint32_t>(value)),
        magic(static_cast<std::uint32_t>((0x1'0000'0000ULL + divisor - 1) / divisor)) {}
};

/// A number that says whether two ranks made the same call, or whether a handle is one's own.
SLUICE_INLINE constexpr std::uint32_t mix(std::uint32_t a, std::uint32_t b) {
  std::uint32_t h = (a ^ b) * 0x9E3779B1U + b;
  h = (h ^ (h >> 15)) * 0x85EBCA77U;
  h = (h ^ (h >> 13)) * 0xC2B2AE3DU;
  return h ^ (h >> 16);
}

/// Epoch of the last operation whose half ended, and the bank of the next.
struct alignas(16) Progress {
  std::uint64_t epoch;
  std::uint32_t bank;
};

/// What happened to all operations of a kind: sums, and sets of ranks.
struct Totals {
  unsigned long long lost_routes;
  unsigned long long bad_routes;
  unsigned long long overflow_rows;
  std::uint32_t missing;
  std::uint32_t refused;
  std::uint32_t mismatched;
};

/// Who answers whom, with `reduce = node`. Its pointers are to what offsets from a lane's base are added.
struct NodeTable {
  int nodes = 0;
  std::uint32_t near = 0;  // Ranks of this node.
  /// By node, ascending: who gives this rank what its node answers; of this rank's own node, itself.
  std::uint8_t giver[kPeersMax] = {};
  /// By rank: who brings what it answers: itself, or the giver of its node.
  std::uint8_t giver_of[kPeersMax] = {};
  /// By home: where its answers go: into its lane or, of another node, to the neighbour that adds them up.
  std::byte* to[kPeersMax] = {};
  /// By giver: from where they are taken.
  std::byte* from[kPeersMax] = {};
};

/// By kind of cell, a word for every block, in host memory: the operation of which it has sent all that it sends to other nodes, and
/// how many blocks say so. Where blocks take what is to be sent from a counter (throughput mode) one says so for all.
///   word := [epoch : 48] [blocks : 16]
struct PublishedWords {
  static constexpr std::size_t kBytes =
      std::size_t{protocol::kCellKinds} * kBlocksMax * sizeof(std::uint64_t);

  static_assert(kBlocksMax < 1 << 16);

  SLUICE_INLINE static constexpr std::size_t at(int kind, int block) {
    return static_cast<std::size_t>(kind * kBlocksMax + block) * sizeof(std::uint64_t);
  }
  SLUICE_INLINE static constexpr std::uint64_t word(std::uint64_t epoch, std::uint32_t blocks) {
    return epoch << 16 | blocks;
  }
  static constexpr std::uint64_t epoch(std::uint64_t word) noexcept { return word >> 16; }
  static constexpr int blocks(std::uint64_t word) noexcept {
    return static_cast<int>(word & 0xffffU);
  }
};

/// What operations across nodes have done, for those who carry meanwhile (carriers.cuh): by kind, launches that only send, and
/// others.
struct Worked {
  /// Blocks that have done their part, of all launches.
  std::uint64_t blocks[protocol::kKinds][2];
  /// By ring: how many those will be when the last launch has done its part of which a carrier is there, or was.
  std::uint64_t until[protocol::kKinds][2][kFerryBlocks];
};

/// Device memory of one communicator, not seen by peers.
struct State {
  /// Once for every block.
  Progress sent[protocol::kKinds][kBlocksMax];
  Progress received[protocol::kKinds][kBlocksMax];
  /// By bank: tag of the combine whose report is ready to be added to.
  std::uint32_t reported[kBanksMax];
  /// Peers given up, for good.
  std::uint32_t suspects;
  /// Of these, those that operations do without from the begin (verdict.cuh).
  std::uint32_t absent;
  /// By kind, bank and peer: mark (verdict.cuh) of the operation in which the peer is being given up, and has been.
  std::uint32_t closing[protocol::kKinds][kBanksMax][kPeersMax];
  std::uint32_t closed[protocol::kKinds][kBanksMax][kPeersMax];
  /// Of dispatches: in which somebody mends, or has mended, what had come of the peer.
  std::uint32_t mended[kBanksMax][kPeersMax];
  /// By bank and token: what was counted of it, see report_lost().
  unsigned long long lost_of_token[kBanksMax][kTokensMax];
  /// 1: a thread has what follows.
  std::uint32_t lock;
  Totals totals[protocol::kKinds];
  /// By bank: of the combine whose report is ready.
  std::int64_t lost_routes[kBanksMax];
  Worked worked;
  /// Written by the host once, where there are nodes of several ranks.
  NodeTable nodes;
  /// Written by the host once, with several nodes. By rank of another node: to what offsets of rows are added, as those of
  /// all else are to Geometry::lanes; of the own node, the same.
  std::byte* row_lanes[kPeersMax];
  /// Likewise: what carriers must know, in GPU memory.
  const FerryArgs* ferry;
};

/// Where device and host meet: pinned host memory, which costs a kernel dearly and is therefore
/// written only when there is something to say, and read only by those who have waited long.
struct Board {
  /// Written by the device: a copy of the State's.
  Totals totals[protocol::kKinds];
  /// Written by the device while it waits: its clock. The host beats for it (docs/protocol.md, "One silent rank").
  std::uint64_t waits;
  /// Written by the device, by peer: 1 once its kernels have given the peer up, before they act on it: what this rank sends
  /// to it may be torn from then on.
  std::uint8_t suspected[kPeersMax];
  /// Written by the host: peers that are dead, and how long no sign of life of a peer has been seen.
  std::uint32_t gone;
  std::uint32_t silent_ms[kPeersMax];
  /// Written by the host once: who is given up with a peer. Of a rail peer: its node, which is reached through it.
  std::uint32_t falls_with[kPeersMax];
};

/// Where what is counted lies in Geometry::counters: bytes of every kind, then rows of every local
/// expert, of the last dispatch and of all, then nanoseconds waited for every rank.
struct Counters {
  SLUICE_INLINE static constexpr int step(int expert) { return protocol::kKinds + expert; }
  SLUICE_INLINE static constexpr int total(int expert, int local_experts) {
    return protocol::kKinds + local_experts + expert;
  }
  SLUICE_INLINE static constexpr int wait(int rank, int local_experts) {
    return protocol::kKinds + 2 * local_experts + rank;
  }
  static constexpr int words(int local_experts) { return wait(kPeersMax, local_experts); }
};

/// A copy of what a source that is given up in a dispatch had told of its records, in Geometry::evidence by bank
/// and source: its counts here, then its cell.
struct Evidence {
  SLUICE_INLINE static constexpr std::uint32_t count(int expert) {
    return static_cast<std::uint32_t>(expert) * 8U;
  }
  SLUICE_INLINE static constexpr std::uint32_t cell(int packet, int local_experts) {
    return (count(local_experts) + 15U) / 16U * 16U +
           static_cast<std::uint32_t>(packet) * std::uint32_t{window::kPacketBytes};
  }
  SLUICE_INLINE static constexpr std::size_t bytes(int local_experts, int tokens) {
    return cell(window::cell_packets(tokens), local_experts);
  }
};

/// What a block does: sends what is no piece, writes the handle, or moves pieces.
enum class Role : std::uint32_t { herald, keeper, worker };

/// Device memory in which kernels note what their warps do and when: of the latest launches of a kind.
struct Recording {
  /// Of one warp in one operation: one about it, then events, and last the multiprocessor.
  static constexpr int kWords = 16;
  static constexpr int kEventsMax = kWords - 2;
  /// The event with which a launch starts, of which an operation may have several; all others are phases.
  static constexpr std::uint32_t kStart = 7;

  std::uint64_t* words = nullptr;  // [kinds][launches][blocks][kBlockWarps][kWords]; null: nothing
  int launches = 0;
  int blocks = 0;

  /// The end of a phase. The clock's steps are 32 ns: its last bits are free.
  SLUICE_INLINE static constexpr std::uint64_t event(std::uint64_t ns, std::uint32_t what) {
    return (ns & ~std::uint64_t{7}) | what;
  }
  SLUICE_INLINE static constexpr std::uint64_t head(std::uint64_t epoch, Role role, int events) {
    return epoch << 8 | static_cast<std::uint64_t>(role) << 4 | static_cast<std::uint64_t>(events);
  }
};

/// The same for all operations of a communicator.
struct Geometry {
  int rank = 0;
  int ranks = 0;
  int top_k = 0;
  int hidden = 0;
  int experts = 0;
  int local_experts = 0;  // of this rank
  Divisor top_k_divisor;
  Divisor ranks_divisor;
  Divisor experts_divisor;  // contiguous map: of every rank the same number of experts
  /// [E]: rank << kLocalBits | local expert; null: contiguous
  const std::uint16_t* owners = nullptr;
  std::uint32_t handle_key = 0;  // Of handles that this rank of this communicator made.
  window::PacketLayout layout;
  std::byte* window = nullptr;       // of this rank
  std::byte* lanes[kPeersMax] = {};  // this rank's, in the window of every rank, as mapped here
  State* state = nullptr;
  Board* board = nullptr;
  Recording recording;
  unsigned long long* counters = nullptr;  // of this rank: see Counters
  std::byte* evidence = nullptr;           // see Evidence
  // With several nodes. The lanes of ranks of other nodes lie in host memory of this rank's, but for their rows
  // (State::row_lanes): its progress thread takes from there what is published.
  std::byte* published = nullptr;     // PublishedWords. Null on one node.
  std::uint32_t near = 0;             // Ranks of this node.
  std::uint8_t rail[kPeersMax] = {};  // By rank: the rail peer on its node.
  int carriers = 0;  // Of a launch: its last blocks, which carry what comes (carriers.cuh).
};

/// Routing of one operation between its halves.
struct SavedRoutes {
  std::uint32_t bad_routes;
  std::int32_t ids[kTokensMax * kMaxTopk];
  float weights[kTokensMax * kMaxTopk];
};

/// Which halves a launch does.
struct Halves {
  bool send = true;
  bool receive = true;
};

struct DispatchArgs {
  Geometry geometry;
  Halves halves;
  std::uint32_t signature = 0;   // Of what all ranks agree on in this call.
  std::uint64_t timeout_ns = 0;  // 0: none
  bool refused = false;
  bool rows = true;      // false: plan
  bool cached = false;   // handle is that of an earlier dispatch
  bool drop = false;     // What comes is emptied and dropped.
  bool many = false;     // Tokens enough to keep links busy: larger pieces.
  bool numbers = false;  // See numbers_rows_at_once().
  // send
  int tokens = 0;
  Grid x;
  DType x_dtype = DType::bf16;
  bool aligned = true;        // Rows of x and of the output: 16 bytes at a time.
  const void* ids = nullptr;  // strides in elements
  bool ids64 = false;
  std::int64_t ids_stride[2] = {};
  bool weights_given = false;  // Else they are 1.
  const float* weights = nullptr;
  std::int64_t weights_stride[2] = {};
  const std::uint8_t* mask = nullptr;
  std::int64_t mask_stride[2] = {};  // The second is 0 where the mask is [T].
  // codec
  Codec codec;
  Divisor units_divisor;  // units of a row
  int row_bytes = 0;      // of the encoded row
  int scale_packets = 0;  // per unit
  int record_packets = 0;
  int scale_words = 0;  // of a row's scales in the output
  // receive
  Layout layout = Layout::expert_slab;
  std::int64_t alignment = 1;
  std::int64_t capacity = 0;
  std::int64_t stored_rows = 0;  // of the tensor
  bool zero_padding = false;     // Rows that hold nothing become zero.
  Grid out;
  Grid scales;
  bool whole_scales = false;  // Scales of a unit: 16 bytes at a time.
  std::byte* handle = nullptr;
  window::HandleLayout handle_layout{1, 1, 1, 1};
  window::HandleHeader header;       // What is known of it before the dispatch.
  std::byte* handle_copy = nullptr;  // of a cached dispatch
  Report* report = nullptr;
  /// Halves apart: routing as used, which the send half leaves for the receive half.
  SavedRoutes* saved = nullptr;
  Grid x_scales;  // send: of an x that is encoded already
};

struct CombineArgs {
  Geometry geometry;
  Halves halves;
  std::uint32_t signature = 0;
  std::uint64_t timeout_ns = 0;
  bool refused = false;
  bool drop = false;
  bool many = false;
  const std::byte* handle = nullptr;
  window::HandleLayout handle_layout{1, 1, 1, 1};
  // send
  Grid y;
  bool y_slabs = false;     // [L, slab_rows, H], else [N, H]
  std::int64_t y_rows = 0;  // slab_rows or N
  int y_last_row = -1;      // of all slabs; -1: none
  Divisor steps_divisor;    // pieces of a row
  Divisor taken_divisor;    // the same in the receive half
  int answers_at_once = 1;  // throughput mode: of the records that a warp has pushed
  DType y_dtype = DType::bf16;
  bool aligned = true;  // Rows of y, out and what is added: 16 bytes at a time.
  bool plain_sum = false;
  bool single = false;
  DType codec = DType::bf16;
  bool weights_given = false;  // to combine; a rank without tokens has none to point to
  const float* weights = nullptr;
  std::int64_t weights_stride[2] = {};
  const float* row_weights = nullptr;
  std::int64_t row_weights_stride[2] = {};
  int weights_tokens = 0;             // rows of weights
  std::int64_t row_weights_rows = 0;  // of row_weights
  // receive
  int tokens = 0;  // rows of out
  Grid out;
  DType out_dtype = DType::bf16;
  int extras = 0;  // shared results, then biases
  Grid extra[kMaxSharedResults + kMaxBiases];
  DType extra_dtype[kMaxSharedResults + kMaxBiases] = {};
  float* surviving_weight = nullptr;
  std::int64_t surviving_stride = 0;
  float* weights_home = nullptr;
  std::int64_t weights_home_stride[2] = {};
  bool renormalize = true;
  bool by_node = false;  // Both halves: `reduce = node`, where it makes a difference.
  Report* report = nullptr;
};

/// Elements that a warp of combine handles at a time.
inline constexpr int kStepElements = 256;

/// Where the host is told how many rows a dispatch has brought: as DispatchOutputs::row_counts.
struct RowCounts {
  std::int64_t* out = nullptr;  // [L + 2]; null: nobody asked
  std::uint64_t epoch = 0;
};

/// Dynamic shared memory that carriers use, where there are any.
inline constexpr std::size_t kCarrierBytes = 2048;

/// How a launch is shaped.
struct Launch {
  int blocks = 0;
  bool overlap = true;  // programmatic dependent launch
  void* stream = nullptr;
  RowCounts row_counts;  // dispatch
};

/// Whether a dispatch of these has all counts in the registers of every warp that takes records.
bool numbers_rows_at_once(const DispatchArgs& args);

/// The kernel of a launch, and what decides how many of its blocks fit on one multiprocessor.
struct Footprint {
  const void* kernel = nullptr;
  std::size_t shared_bytes = 0;

  bool operator==(const Footprint&) const = default;
};
Footprint choose_dispatch(const DispatchArgs& args);
/// Tells `args` into what pieces that kernel cuts rows.
Footprint choose_combine(CombineArgs& args);
/// Whether a combine, or a half of one, is of those that have kernels of their own, from which all that is rare is left out.
bool is_common(const CombineArgs& args);

/// All return a cudaError_t. `chosen`: for these arguments.
int launch_dispatch(const DispatchArgs& args, const Footprint& chosen, const Launch& launch);
/// After the kernel that has written the handle of `args`.
int launch_row_counts(const DispatchArgs& args, const Launch& launch);
int load_row_counts_kernel();
int launch_combine(const CombineArgs& args, const Footprint& chosen, const Launch& launch);
/// Load all kernels on the current GPU, since loading one later could wait for another that spins.
int load_dispatch_kernels();
int load_combine_kernels();
/// Whether the kernels, as the current GPU has them, wait by themselves for those before: not if compiled
/// from sm_80's code, for whatever GPU. Only then may Launch::overlap be set.
bool kernels_await_previous();

}  // namespace sluice::engine::cuda
