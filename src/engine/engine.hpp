// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>

#include "routing/expert_map.hpp"
#include "routing/node_map.hpp"
#include "routing/row_plan.hpp"
#include "sluice/communicator.hpp"
#include "window/packet_layout.hpp"
#include "window/window_layout.hpp"

namespace sluice::engine {

/// What all ranks agreed on when the communicator was created.
struct EngineConfig {
  int rank = 0;
  int ranks = 0;
  Shape shape;
  CommunicatorOptions options;  // mode and slot_tokens are resolved: neither automatic nor 0.
  routing::ExpertMap map;
  routing::NodeMap nodes = routing::NodeMap::one_node(0);
  Reduce reduce = Reduce::rank;   // Default of combine calls.
  int tokens_max = 0;             // Most tokens of one call: slot_tokens or max_tokens.
  window::WindowShape window;     // cpu
  window::PacketShape packets;    // cuda
  std::uint64_t fingerprint = 0;  // Equal on all ranks; with the rank it marks handles.

  bool throughput() const noexcept { return options.mode == Mode::throughput; }
  /// Peers may read inputs where they lie, in registered memory; those stay unchanged until all have
  /// told that they have read them.
  bool reads_in_place() const noexcept {
    return throughput() || options.y_memory == YMemory::registered;
  }
  int local_experts() const noexcept { return map.local_experts(rank); }
};

/// A checked dispatch, as its send half needs it. When refused, only `refused` and the agreed
/// arguments matter.
struct DispatchSend {
  bool refused = false;
  bool rows = true;          // false: plan
  ConstTensorView x;         // [T, H]
  ConstTensorView scales;    // given: x is encoded
  ConstTensorView topk_ids;  // not given: cached
  ConstTensorView topk_weights;
  ConstTensorView mask;
  Handle cached;
  routing::RowPlacement placement;  // capacity resolved for expert_slab
  Codec codec;
  std::chrono::nanoseconds timeout{-1};  // Of each half's waits; negative: none.
  bool whole = false;                    // The receive half follows at once.
  void* stream = nullptr;
};

struct CombineSend {
  bool refused = false;
  ConstTensorView y;
  Handle handle;  // valid, of this communicator; or not given when refused
  ConstTensorView weights;
  ConstTensorView row_weights;
  bool plain_sum = false;
  Reduce reduce = Reduce::rank;
  CodecKind codec = CodecKind::bf16;
  std::chrono::nanoseconds timeout{-1};  // Of each half's waits; negative: none.
  bool whole = false;                    // The receive half follows at once.
  void* stream = nullptr;
};

/// Adds one operation's report to the sums.
inline void add_report(Report& total, const Report& one) noexcept {
  total.lost_routes += one.lost_routes;
  total.bad_routes += one.bad_routes;
  total.overflow_rows += one.overflow_rows;
  total.wait_ns += one.wait_ns;
  for (std::size_t word = 0; word < total.missing.words.size(); ++word) {
    total.missing.words[word] |= one.missing.words[word];
    total.refused.words[word] |= one.refused.words[word];
    total.mismatched.words[word] |= one.mismatched.words[word];
  }
}

/// One way to move rows. Arguments are checked by src/api; an engine sees no illegal ones.
/// Receive halves take the oldest operation of their kind.
class Engine {
 public:
  virtual ~Engine() = default;

  /// Both return the epoch of the operation. The request stays as it is until the receive half is done.
  virtual std::uint64_t send_dispatch(const DispatchSend& request) = 0;
  virtual std::uint64_t send_combine(const CombineSend& request) = 0;
  /// `status`: what src/api found wrong with the outputs; then everything is drained and dropped. `out`
  /// stands for outputs.out.
  virtual Received receive_dispatch(const DispatchOutputs& outputs, Status status) = 0;
  virtual CombineResult receive_combine(const TensorView& out, const CombineOutputs& outputs,
                                        Status status) = 0;
  /// Tokens of the oldest combine in flight, for the check of its outputs; 0 if it has no handle,
  /// -1 if the host does not know.
  virtual int combine_tokens() const noexcept = 0;
  /// Whether the first operation of this view is still to end (it has a longer deadline).
  virtual bool first_operation() const noexcept = 0;

  virtual Result<void*> allocate(std::size_t bytes) = 0;
  virtual Status deallocate(void* memory) = 0;

  virtual Statistics statistics() const = 0;
  virtual void start_profile(std::size_t events_max) = 0;
  virtual Status write_profile(const std::string& path) const = 0;
};

}  // namespace sluice::engine
