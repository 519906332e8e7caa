// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/export.hpp"
#include "sluice/handle.hpp"
#include "sluice/limits.hpp"
#include "sluice/report.hpp"
#include "sluice/status.hpp"
#include "sluice/types.hpp"
#include "sluice/world.hpp"

namespace sluice {

/// What a communicator moves. Equal on all ranks.
struct Shape {
  int experts = 0;     ///< E, over all ranks.
  int top_k = 0;       ///< K, routes per token.
  int hidden = 0;      ///< H, elements per row, a multiple of 16.
  int max_tokens = 0;  ///< M, the most tokens that one rank gives to one call.
};

/// Equal on all ranks, but for device_index, block_limit, registered_bytes and the deadlines; creation compares the others
/// and fails everywhere with both values if they differ.
struct CommunicatorOptions {
  Mode mode = Mode::automatic;           ///< automatic: latency if max_tokens <= 512.
  Layout layout = Layout::expert_major;  ///< Default of dispatch calls.
  Codec dispatch_codec;  ///< Default of dispatch calls; a call's own codec needs no larger record.
  CodecKind combine_codec = CodecKind::bf16;  ///< Likewise for combine: bf16, f16 or f32.
  /// Default of combine calls. Not given: rank on one node, node on several.
  std::optional<Reduce> reduce;
  bool permit_single = false;  ///< Size the window so that Reduce::single may be used.
  /// registered: y given to combine lies in registered memory (see allocate), where homes read it in
  /// place; a y that does not is still right, but slower. Then a registered x of dispatch is read in
  /// place, too, as it always is in throughput mode.
  YMemory y_memory = YMemory::ordinary;
  int slot_tokens = 0;  ///< latency: the most tokens of one call; 0: min(max_tokens, 512).
  int in_flight = 2;    ///< d: operations of one kind that may be between their halves, 1 to 4.
  /// Where tensors, handles and windows lie, and so which engine moves them. cuda: all tensors of all
  /// calls are memory that `device_index` can address, and calls only queue work on a stream.
  Device device = Device::cpu;
  int device_index = -1;  ///< cuda: this rank's GPU; negative: the calling thread's current one.
  /// cuda: thread blocks of one launch at most. latency: 0 for half as many as there are multiprocessors, as many, or
  /// twice as many, by the call; all blocks of a launch must run at the same time, and one may need a whole
  /// multiprocessor: leave room for kernels of other streams, and across nodes an eighth besides. throughput: the
  /// multiprocessors that move rows, one block on each; 0 for 24, or 12 for plain rows of rank_major that peers read
  /// where they lie. Across nodes four more blocks carry what comes from there.
  int block_limit = 0;
  /// Expert to rank, E entries; empty: contiguous, the first E mod R ranks own one expert more.
  /// Local experts of a rank are its experts in ascending order.
  std::vector<std::int32_t> expert_to_rank;
  /// Size of this communicator's registered memory per rank (see allocate). Taken by
  /// allocate; cuda: at creation, and in latency mode not at all, since allocate needs none there.
  std::size_t registered_bytes = 0;
  /// Limit of each wait of one operation, of which there are a few one after the other (for what is to be overwritten, for
  /// counts, for rows); and of each of creation's and the first operation's. Negative: none. A peer that is itself seen to
  /// wait for another gets the same time again, at most R - 1 times.
  std::chrono::nanoseconds deadline = std::chrono::seconds(30);
  std::chrono::nanoseconds first_deadline = std::chrono::seconds(300);
};

/// What an allocator is asked for.
enum class BufferKind : std::uint8_t { rows, scales };
/// Returns memory of at least `bytes` bytes, 64-byte aligned, or null (or throws): then the rows are
/// dropped and the call returns out_of_memory.
using RowAllocator = std::function<void*(BufferKind kind, std::size_t bytes)>;

/// Arguments of a dispatch's send half. Layout, codec, alignment and capacity are equal on all
/// ranks.
struct DispatchOptions {
  std::optional<Layout> layout;
  std::optional<Codec> codec;
  ConstTensorView mask;  ///< u8 [T] or [T, K]; 0 skips the token or the route.
  /// Scales of an x that is encoded already (dtype e4m3, with codec fp8), as the codec says: f32
  /// [T, G] or, for ue8m0, i32 [T, ceil(G / 4)], G = ceil(H / group); any strides. Rows and scales
  /// then travel as they are, but for NaN (see docs/number-formats.md).
  ConstTensorView scales;
  std::int64_t expert_alignment =
      1;  ///< expert_major: segments start at multiples of it, 1 to 65536.
  /// Rows that are stored: in all (rank_major, expert_major) or per expert (expert_slab:
  /// slab_rows). 0: the worst case, R * M per expert in expert_slab; but in dispatch (not its halves), where a tensor of
  /// three dimensions is given for the rows, the slab_rows of that, which all ranks then give alike.
  std::int64_t capacity = 0;
  std::optional<std::chrono::nanoseconds> deadline;
  void* stream = nullptr;  ///< cuda: the cudaStream_t of the call, or of its send half.
};

/// Where a dispatch's receive half puts things. What is not given comes from the library.
struct DispatchOutputs {
  /// [N, H], or [L, slab_rows, H]; N at least the number of rows (or the capacity); cuda: at least the capacity, or the
  /// worst case, since the host does not know the number. Innermost stride 1, others any. dtype of the codec.
  TensorView rows;
  /// fp8: f32 [N, G] or [L, slab_rows, G]; for ue8m0, i32 [N, ceil(G / 4)] or [L, slab_rows, ceil(G / 4)]; any strides.
  TensorView scales;
  /// Called when the number of rows is known, for what of the above is not given.
  RowAllocator allocator;
  /// 64-byte aligned memory of handle_bytes() for the handle.
  Handle handle;
  /// Write zeros to rows between segments and after the last one, and to their scales: a tensor of
  /// scales must then have as many rows as that of rows.
  bool zero_padding = false;
  /// Where this operation's report is written, besides what is returned. cuda: memory that the GPU
  /// can write; filled when the operation ends, and zeroed when it begins.
  Report* report = nullptr;
  /// i64 [L + 2] or longer, contiguous: Received::epoch, the number of rows, and the rows of every
  /// local expert (Handle::counts), for a host that makes tensors of that size: see await_row_counts.
  /// The first is written last. Zeros but for that one, if nothing came: a call that was refused or
  /// dropped. Not written at all where kernels could not be launched (Received::status says so). cuda:
  /// memory that GPU and host reach (pinned, or managed), not to be given to another dispatch before
  /// it has come.
  TensorView row_counts;
  void* stream = nullptr;  ///< cuda: of a receive half of its own.
};

/// What dispatch returns. Rows that the library owns are valid until release(), which is also what
/// the destructor does; a communicator reuses their memory after that.
struct Received {
  /// Also ok if peers were lost: the report says who is missing. Not ok:
  /// - a refusal (invalid_argument, out_of_memory): peers complete without this rank's part; a new handle is valid all the
  ///   same and marked refused, that of a cached dispatch stays as it was. cuda: what only the GPU can see, as whose a
  ///   handle is, becomes one without being said here; the peers' reports name this rank.
  /// - `mismatch`: a peer made another call; its part was dropped, the rest is as it should be.
  /// - failed_precondition: halves out of order, or too many of them. There is no handle, and peers are not told.
  /// - what ended the communicator's calls, if it has (see Communicator).
  Status status;
  Handle handle;
  Report report;  ///< cuda: empty, since nothing has happened yet; see DispatchOutputs::report.
  std::uint64_t epoch = 0;  ///< Number of this dispatch; 0: there was none.
  TensorView rows;
  TensorView scales;

  explicit operator bool() const noexcept { return status.ok(); }
  void release() noexcept { owner.reset(); }

  std::shared_ptr<void> owner;
};

/// Waits until the dispatch with this Received::epoch has written DispatchOutputs::row_counts; not
/// for its stream, nor for its rows. deadline_exceeded after `timeout` (negative: never); invalid_argument for another
/// tensor, failed_precondition for epoch 0, which is no dispatch. A replay of
/// a graph writes the number of the call that was captured, and another communicator's dispatches
/// have the same numbers: set the first element to 0 before memory is used again in these ways.
SLUICE_API Status await_row_counts(const TensorView& row_counts, std::uint64_t epoch,
                                   std::chrono::nanoseconds timeout);

/// Between the halves of an operation. Receive halves run in the order of their sends.
struct [[nodiscard]] DispatchTicket {
  Status status;  ///< Not ok: refused; the receive half is still to be called.
  std::uint64_t epoch = 0;
};
struct [[nodiscard]] CombineTicket {
  Status status;
  std::uint64_t epoch = 0;
};

/// Arguments of a combine's send half: equal on all ranks, but for the tensors' contents.
struct CombineOptions {
  std::optional<Reduce> reduce;
  std::optional<CodecKind> codec;
  /// Weights f32 [T, K] of this rank's tokens, to be used instead of those given to dispatch.
  ConstTensorView weights;
  bool plain_sum = false;  ///< Expert layouts: add results instead of weighting them.
  /// rank_major: f32 [N, K], sent home to `CombineOutputs::weights_home` (dispatch's backward).
  ConstTensorView row_weights;
  std::optional<std::chrono::nanoseconds> deadline;
  void* stream = nullptr;  ///< cuda: the cudaStream_t of the call, or of its send half.
};

/// Arguments of a combine's receive half; local to this rank.
struct CombineOutputs {
  TensorView out;  ///< [T, H] bf16, f16 or f32; innermost stride 1.
  std::vector<ConstTensorView>
      shared_results;  ///< [T, H] each, bf16, f16 or f32, up to eight, added in order.
  std::vector<ConstTensorView> biases;  ///< Likewise, up to two, added last.
  TensorView surviving_weight;          ///< f32 [T]: sum of the answered routes' weights.
  TensorView weights_home;              ///< f32 [T, K]: the peers' row_weights.
  /// Where routes were lost, scale by (weight of all routes) / (weight of the answered ones).
  bool renormalize = true;
  Report* report = nullptr;  ///< As DispatchOutputs::report.
  void* stream = nullptr;    ///< cuda: of a receive half of its own.
};

struct CombineResult {
  /// As Received::status. Routes that were lost do not make it not ok; the report counts them.
  Status status;
  Report report;  ///< cuda: empty; see CombineOutputs::report.
  explicit operator bool() const noexcept { return status.ok(); }
};

/// One line of the memory account of a communicator, per rank.
struct SizeEntry {
  std::string name;
  std::size_t bytes = 0;
};

/// Counters of one rank since creation. cuda: what kernels have counted by now, without waiting for
/// them; waits of less than some 15 us (dispatch) or 30 us (combine) do not count.
struct Statistics {
  std::vector<std::int64_t> rows_per_expert_step;   ///< [L], last dispatch.
  std::vector<std::int64_t> rows_per_expert_total;  ///< [L].
  std::vector<std::int64_t> wait_ns_per_source;     ///< [R].
  std::int64_t dispatches = 0;
  std::int64_t combines = 0;
  /// Payload and metadata bytes stored to or loaded from other ranks' memory.
  std::int64_t dispatch_wire_bytes = 0;
  std::int64_t combine_wire_bytes = 0;
  /// [R], several nodes: bytes that this rank has put to each rank of another node: heads, rows,
  /// metadata of answers; signs and credits count as none. 0 for those of its own. Else empty.
  std::vector<std::int64_t> network_bytes;
  /// Several nodes: when this rank handed the first bytes of the newest operation to the network, and when
  /// the newest bytes of any arrived here, in nanoseconds of the host's steady clock; 0: never. From the
  /// first of the one to the last of the other, over all ranks, an operation that runs alone takes the network.
  std::int64_t network_first_put_ns = 0;
  std::int64_t network_last_arrival_ns = 0;
  /// The reports of all operations: sums, and unions of sets.
  Report dispatch_reports;
  Report combine_reports;
};

/// Moves tokens to their experts and back, for one shape, over the ranks of one world.
///
/// Every rank makes the same calls in the same order; each is an operation of its own. Calls on one
/// communicator come from one thread at a time; different communicators are independent. Every wait of a
/// call ends (CommunicatorOptions::deadline); across nodes a wait for this rank's own memory to be read lasts for up to
/// four patiences of the network (SLUICE_NETWORK_PATIENCE_MS) whatever the deadline. cuda: calls do not block; kernels wait. The data path never allocates once the buffers that it
/// hands out have been released and reused; where it does before, and there is no memory, the call is
/// out_of_memory. If its Status says that the communicator can make no more calls, all later ones give it
/// too, and nothing is left but to destroy it.
class SLUICE_API Communicator {
 public:
  /// Collective over the world: on all ranks or on none. The world may be destroyed before the
  /// communicator. invalid_argument: shape or options; mismatch: ranks' differ; unimplemented: more than this build, or
  /// this engine, can (several nodes without libfabric; cuda: more than 16 ranks, or 512 tokens in latency mode);
  /// unavailable: a GPU, a provider or a peer is not there; out_of_memory; deadline_exceeded; io_error: the system refuses,
  /// as a thread.
  static Result<Communicator> create(World& world, const Shape& shape,
                                     const CommunicatorOptions& options = {});

  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  /// Local (but if the World is destroyed already, it may take as long as ~World). cuda: waits for its kernels. On several
  /// nodes a thread serves peers that are not done yet in the background, for
  /// up to ten seconds (or a patience, if that is longer), and the usual end of the process waits for that.
  ~Communicator();

  int rank() const noexcept;
  int size() const noexcept;
  const Shape& shape() const noexcept;
  Mode mode() const noexcept;
  int local_experts() const noexcept;
  /// Global ids of the local experts, ascending, L entries.
  std::span<const std::int32_t> local_expert_ids() const noexcept;
  /// Bytes of a handle for this communicator.
  std::size_t handle_bytes() const noexcept;

  /// Sends every token of x [T, H] (bf16, f16, f32, or e4m3 with options.scales) to the ranks of its
  /// experts and receives the rows of this rank's experts. topk_ids: i32 or i64 [T, K], -1 skips;
  /// duplicates are legal. topk_weights: f32 [T, K], or not given (then 1). x may be overwritten when
  /// it returns; cuda: by what is queued on that stream afterwards.
  Received dispatch(ConstTensorView x, ConstTensorView topk_ids, ConstTensorView topk_weights = {},
                    const DispatchOptions& options = {}, const DispatchOutputs& outputs = {});
  /// Sends x along the routes of an earlier dispatch (or plan); no routing travels. No mask, and no other layout than the
  /// handle's. Alignment and capacity are the handle's, and options that say others are not heeded; cuda: the options have to
  /// say layout, alignment and capacity again, since the host does not read the handle.
  Received dispatch(ConstTensorView x, const Handle& cached, const DispatchOptions& options = {},
                    const DispatchOutputs& outputs = {});
  /// The routing only: exact counts and offsets, no rows. The handle is for dispatch(x, handle)
  /// and combine.
  Received plan(ConstTensorView topk_ids, ConstTensorView topk_weights = {},
                const DispatchOptions& options = {}, const DispatchOutputs& outputs = {});
  /// dispatch(x, handle) under the name that goes with plan.
  Received move(ConstTensorView x, const Handle& planned, const DispatchOptions& options = {},
                const DispatchOutputs& outputs = {}) {
    return dispatch(x, planned, options, outputs);
  }
  /// The halves of dispatch. Where inputs are read in place (throughput mode, or y_memory =
  /// registered) receive halves of both kinds come in the order of all send halves, on every rank.
  /// x must stay unchanged until the receive half has returned.
  DispatchTicket send_dispatch(ConstTensorView x, ConstTensorView topk_ids,
                               ConstTensorView topk_weights = {},
                               const DispatchOptions& options = {});
  DispatchTicket send_dispatch(ConstTensorView x, const Handle& cached,
                               const DispatchOptions& options = {});
  Received receive_dispatch(const DispatchTicket& ticket, const DispatchOutputs& outputs = {});

  /// Sums the experts' results y (rows as dispatch laid them out, bf16, f16 or f32) at home.
  /// y may be overwritten when it returns (cuda: by what is queued on that stream afterwards), but not by this call: `out`
  /// does not overlap it. `outputs.out` is not heeded. Reduce::single is refused for rows of rank_major.
  CombineResult combine(ConstTensorView y, const Handle& handle, TensorView out,
                        const CombineOptions& options = {}, const CombineOutputs& outputs = {});
  /// The halves of combine. y and the handle must stay unchanged until the receive half returned.
  CombineTicket send_combine(ConstTensorView y, const Handle& handle,
                             const CombineOptions& options = {});
  CombineResult receive_combine(const CombineTicket& ticket, const CombineOutputs& outputs);

  /// Registered memory: peers can read it, so inputs in it need not be staged (see y_memory; a row
  /// that is yet to be encoded or converted always is; of one that is encoded already the CPU engine
  /// needs the scales right behind the row). 64-byte aligned, in huge pages where the system allows
  /// them; local call. Freed with the communicator at the latest. out_of_memory: beyond registered_bytes, or the machine's.
  Result<void*> allocate(std::size_t bytes);
  /// invalid_argument for what allocate did not give. cuda: kernels that use the memory must have ended.
  Status deallocate(void* memory);

  /// Empty if there is no memory for it.
  Statistics statistics() const;

  /// Records phases of the following operations, in the place of what was recorded before; 0 events: no longer. write_profile
  /// writes them as a Perfetto-readable JSON file. cuda: of every warp, by the GPU's clock, and of the latest operations only (of halves
  /// apart, the receive half); those that were captured before are not recorded. The memory (some 9 MB on an H200, by
  /// default) is not given back while the communicator lives, since graphs may use it. Wait for the stream before
  /// write_profile. Beyond `events_max` nothing is recorded (cuda: the latest is). write_profile: io_error if the file cannot
  /// be written; cuda: out_of_memory if there was none for the events (on the CPU engine start_profile warns, and there are none).
  void start_profile(std::size_t events_max = 1 << 20);
  Status write_profile(const std::string& path) const;

  /// The memory account of one rank for a shape, page rounding included: invalid_argument as create, and unimplemented for
  /// what cuda cannot. On the CPU engine "window" is the sum of the entries before it, rounded up; "handle" is one handle,
  /// which create does not take.
  static Result<std::vector<SizeEntry>> sizes(const Shape& shape, int ranks,
                                              const CommunicatorOptions& options = {});
  /// The same of several nodes: the first node_sizes[0] ranks are one, and so on. Of the rank that takes most, with the
  /// network's default settings, whatever the environment says. Endpoints take more, as their provider does.
  static Result<std::vector<SizeEntry>> sizes(const Shape& shape,
                                              const std::vector<int>& node_sizes,
                                              const CommunicatorOptions& options = {});

 private:
  struct Impl;
  explicit Communicator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
