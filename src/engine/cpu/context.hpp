// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/deadline.hpp"
#include "bootstrap/group.hpp"
#include "codec/row_kernels.hpp"
#include "engine/buffer_pool.hpp"
#include "engine/cpu/lanes.hpp"
#include "engine/cpu/partial_sum.hpp"
#include "engine/engine.hpp"
#include "memory/region_allocator.hpp"
#include "memory/shared_region.hpp"
#include "protocol/await.hpp"
#include "protocol/cell.hpp"
#include "relay/relay.hpp"
#include "trace/timeline.hpp"
#include "window/handle_layout.hpp"

namespace sluice::engine::cpu {

/// What the four halves share: one rank's side of one communicator.
struct Context {
  Context(EngineConfig config_, std::shared_ptr<bootstrap::Group> group_,
          std::shared_ptr<relay::Memory> memory_, std::unique_ptr<relay::Relay> relay_, bool spins_)
      : config(std::move(config_)),
        group(std::move(group_)),
        layout(config.window),
        memory(std::move(memory_)),
        relay(std::move(relay_)),
        spins(spins_),
        windows(memory->windows),
        heaps(memory->heaps),
        lanes(config.rank, layout, windows, config.nodes,
              relay == nullptr ? nullptr : &relay->site().own()),
        kernels(codec::best_kernels()),
        handle_layout(config.ranks, config.shape.top_k, config.local_experts(), config.tokens_max),
        heap(heaps.bytes(config.rank)),
        sum_rows(static_cast<std::size_t>(config.shape.top_k + 1) *
                 config.window.combine_row_bytes) {
    statistics.rows_per_expert_step.resize(static_cast<std::size_t>(config.local_experts()));
    statistics.rows_per_expert_total.resize(static_cast<std::size_t>(config.local_experts()));
    statistics.wait_ns_per_source.resize(static_cast<std::size_t>(config.ranks));
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int rank() const noexcept { return config.rank; }
  int ranks() const noexcept { return config.ranks; }
  int top_k() const noexcept { return config.shape.top_k; }
  int hidden() const noexcept { return config.shape.hidden; }
  bool throughput() const noexcept { return config.throughput(); }
  bool reads_in_place() const noexcept { return config.reads_in_place(); }
  const routing::NodeMap& nodes() const noexcept { return config.nodes; }
  bool together(int peer) const noexcept { return config.nodes.together(peer, config.rank); }
  /// The rank of this node that passes on what `peer`, of another node, sends here.
  int forwarder(int peer) const noexcept {
    return config.nodes.rail_peer(peer, config.nodes.node_of(config.rank));
  }
  std::uint64_t& last_read(protocol::Kind kind) noexcept {
    return last_read_[static_cast<std::size_t>(kind)];
  }

  EngineConfig config;
  std::shared_ptr<bootstrap::Group> group;
  window::WindowLayout layout;
  std::shared_ptr<relay::Memory> memory;
  std::unique_ptr<relay::Relay> relay;  // Null on one node.
  bool spins;                           // While it waits.
  memory::SharedRegion& windows;
  memory::SharedRegion& heaps;  // Registered memory.
  Lanes lanes;
  const codec::RowKernels& kernels;
  window::HandleLayout handle_layout;
  protocol::Suspects suspects;
  memory::RegionAllocator heap;
  BufferPool row_buffers;
  BufferPool handle_buffers;
  /// Scratch of combine's receive half: partial sums of a token, then the sum of its own node.
  std::vector<std::byte> sum_rows;
  trace::Timeline timeline;
  Statistics statistics;

 private:
  std::array<std::uint64_t, protocol::kKinds> last_read_{};
};

/// A dispatch between its halves.
struct DispatchOperation {
  void reserve(const EngineConfig& config) {
    const auto routes =
        static_cast<std::size_t>(config.tokens_max) * static_cast<std::size_t>(config.shape.top_k);
    ids.resize(routes);
    weights.resize(routes);
    sent.resize(static_cast<std::size_t>(config.ranks));
    headers.resize(static_cast<std::size_t>(config.nodes.nodes()));
  }

  DispatchSend request;
  std::uint64_t epoch = 0;
  protocol::CellContent content;  // As sent, but for `records`.
  bool zero_copy = false;         // Peers read the caller's x.
  int tokens = 0;
  std::int64_t bad_routes = 0;
  std::int64_t wait_ns = 0;
  std::vector<std::int32_t> ids;      // [tokens_max, K], routes as used
  std::vector<float> weights;         // [tokens_max, K]
  std::vector<std::int32_t> sent;     // [R], records per rank
  std::vector<std::int32_t> headers;  // [nodes], records per other node
};

/// Where a home finds what one rank answered.
struct Answers {
  bool accepted = false;
  bool in_place = false;  // y and the rows of every record; else sums, or `single` rows, in slots.
  const std::byte* slots = nullptr;
  std::uint64_t slot_stride = 0;
  ResultRows y;
  const std::int32_t* route_rows = nullptr;  // [records, K]
};

/// A combine between its halves.
struct CombineOperation {
  void reserve(const EngineConfig& config) {
    weights.resize(static_cast<std::size_t>(config.tokens_max) *
                   static_cast<std::size_t>(config.shape.top_k));
    expected.resize(static_cast<std::size_t>(config.ranks));
    next_slot.resize(static_cast<std::size_t>(config.ranks));
    answers.resize(static_cast<std::size_t>(config.ranks));
    node_answers.resize(static_cast<std::size_t>(config.nodes.nodes()));
    headers.resize(static_cast<std::size_t>(config.nodes.nodes()));
  }

  CombineSend request;
  std::uint64_t epoch = 0;
  protocol::CellContent content;
  bool zero_copy = false;
  bool weights_phase = false;
  int tokens = 0;
  std::int64_t wait_ns = 0;
  RankSet served;                       // Homes that get their records; the others get nothing.
  std::vector<float> weights;           // [tokens_max, K], this rank's effective weights
  std::vector<std::int32_t> expected;   // [R], records per rank
  std::vector<std::int32_t> next_slot;  // [R], cursor while tokens are summed
  std::vector<Answers> answers;         // [R], likewise
  std::vector<Answers> node_answers;    // [nodes], likewise: sums of other nodes, by token
  std::vector<std::int32_t> headers;    // [nodes], records per other node
};

/// The codec of a combine's rows, as a dtype.
inline DType combine_dtype(const CombineOperation& operation) noexcept {
  return codec::row_dtype({operation.request.codec, ScaleForm::f32, 128});
}

/// The halves. Send halves wait for nothing but the guard.
void send_dispatch(Context& context, DispatchOperation& operation);
Received receive_dispatch(Context& context, DispatchOperation& operation,
                          const DispatchOutputs& outputs, Status status);
void send_combine(Context& context, CombineOperation& operation);
CombineResult receive_combine(Context& context, CombineOperation& operation, TensorView out,
                              const CombineOutputs& outputs, Status status);

/// combine_send.cpp: y of `operation`, and whether homes can use its rows as they are: in `single`
/// they add them to others, so they must have the codec's type.
ResultRows results_of(const CombineOperation& operation) noexcept;
bool usable_in_place(const CombineOperation& operation) noexcept;
/// combine_send.cpp: forms what every home gets of `operation` and publishes it. In a combine that
/// was given its weights the receive half calls it, when they have come.
void answer_homes(Context& context, CombineOperation& operation);

}  // namespace sluice::engine::cpu
