// SPDX-License-Identifier: MIT
#include "engine/cuda/cuda_engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "codec/row_kernels.hpp"
#include "engine/build.hpp"
#include "engine/cuda/arguments.hpp"
#include "engine/cuda/caller_memory.hpp"
#include "engine/cuda/cut.hpp"
#include "engine/cuda/device_buffers.hpp"
#include "engine/cuda/kernels.hpp"
#include "engine/cuda/node_link.hpp"
#include "engine/cuda/profile.hpp"
#include "engine/cuda/resources.hpp"
#include "engine/cuda/statistics.hpp"
#include "engine/cuda/stream_order.hpp"
#include "engine/cuda/watch.hpp"
#include "engine/receive_buffers.hpp"
#include "engine/registered_rows.hpp"
#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/device_guard.hpp"
#include "memory/region_allocator.hpp"
#include "relay/relay.hpp"
#include "window/sum_lanes.hpp"

namespace sluice::engine::cuda {
namespace {

using memory::cuda_status;
using memory::DeviceGuard;

/// An operation between its halves.
template <typename Args, typename Request>
struct Pending {
  Args args;
  const Request* request = nullptr;
  InPlace own;
  bool sent = false;  // The send half is on its way; else it goes with the receive half.
};

class CudaEngine final : public Engine {
 public:
  CudaEngine(EngineConfig config, std::shared_ptr<bootstrap::Group> group, Resources resources,
             std::unique_ptr<relay::Relay> relay)
      : config_(std::move(config)),
        resources_(std::move(resources)),
        relay_(std::move(relay)),
        rows_(resources_.pool),
        handles_(resources_.pool),
        handle_layout_(config_.ranks, config_.shape.top_k, config_.local_experts(),
                       config_.tokens_max),
        watch_(std::move(group), relay_.get(), static_cast<Board*>(resources_.board.get())) {}

  ~CudaEngine() override {
    // Kernels use the windows, which are about to be unmapped. They end by their deadlines.
    const DeviceGuard guard(resources_.device);
    order_.wait();
  }

  std::uint64_t send_dispatch(const DispatchSend& request) override {
    auto& pending = dispatches_[slot(++dispatches_sent_)];
    pending.request = &request;
    set_call(known_, request, pending.args);
    if (!request.refused && request.rows) latest_layout_ = request.placement.layout;
    pending.args.saved =
        static_cast<SavedRoutes*>(resources_.saved.get()) + place_of(dispatches_sent_);
    pending.own = !request.refused && request.rows ? rows_in_place(request) : InPlace();
    pending.sent = !request.whole;
    if (pending.sent) {
      pending.args.halves = {true, false};
      remember(run(pending.args, pending.own, dispatches_sent_, request.stream));
    }
    return dispatches_sent_;
  }

  Received receive_dispatch(const DispatchOutputs& outputs, Status status) override {
    auto& pending = dispatches_[slot(++dispatches_received_)];
    const DispatchSend& request = *pending.request;
    DispatchArgs& args = pending.args;
    args.halves = {!pending.sent, true};
    Received received;
    received.status = std::move(status);
    const bool cached = request.cached.given();
    received.handle = cached ? request.cached : take_handle(outputs.handle);
    if (!received.handle.given() && received.status.ok()) {
      received.status = {StatusCode::out_of_memory, "no GPU memory for the handle"};
    }
    args.report = reports_.usable(outputs.report, received.status);
    RowCounts row_counts;
    row_counts.epoch = dispatches_received_;
    row_counts.out =
        row_counts_.usable(static_cast<std::int64_t*>(outputs.row_counts.data), received.status);
    args.handle = static_cast<std::byte*>(received.handle.data());
    args.drop = request.refused || !received.status.ok();
    if (!args.drop && request.rows) take_rows(outputs, request, received, args);
    if (cached && outputs.handle.given() && outputs.handle.data() != request.cached.data()) {
      received.handle = outputs.handle;
      args.handle_copy = static_cast<std::byte*>(outputs.handle.data());
    }
    set_header(known_, args);
    // Memory that a graph would need for as long as there is one.
    const bool lends =
        received.owner != nullptr || received.handle.keeps() || request.cached.keeps();
    const Status launched = run(args, pending.own, dispatches_received_,
                                pending.sent ? outputs.stream : request.stream, row_counts, lends);
    if (order_.capturing()) {
      captured_rows_.push_back(received.owner);
      captured_handles_.push_back(received.handle);
      captured_handles_.push_back(request.cached);
    }
    if (received.status.ok()) received.status = take_error(launched);
    ++statistics_.dispatches;
    return received;
  }

  std::uint64_t send_combine(const CombineSend& request) override {
    auto& pending = combines_[slot(++combines_sent_)];
    pending.request = &request;
    set_call(known_, request, pending.args);
    // Of rank_major, whose rows are partial sums: those of other layouts are formed here, and pushed.
    pending.own = in_place(request.y, !request.refused && reads_results(request));
    pending.sent = !request.whole;
    if (pending.sent) {
      pending.args.halves = {true, false};
      pending.args.tokens = weights_tokens(request);
      remember(run(pending.args, pending.own, combines_sent_, request.stream));
    }
    return combines_sent_;
  }

  CombineResult receive_combine(const TensorView& out, const CombineOutputs& outputs,
                                Status status) override {
    auto& pending = combines_[slot(++combines_received_)];
    const CombineSend& request = *pending.request;
    CombineArgs& args = pending.args;
    args.halves = {!pending.sent, true};
    args.report = reports_.usable(outputs.report, status);
    args.drop = request.refused || !status.ok();
    args.tokens = args.drop ? weights_tokens(request) : static_cast<int>(out.shape[0]);
    if (!args.drop) set_outputs(out, outputs, args);
    const Status launched =
        run(args, pending.own, combines_received_, pending.sent ? outputs.stream : request.stream,
            {}, request.handle.keeps());
    if (order_.capturing()) captured_handles_.push_back(request.handle);
    CombineResult result;
    result.status = status.ok() ? take_error(launched) : std::move(status);
    ++statistics_.combines;
    return result;
  }

  int combine_tokens() const noexcept override { return -1; }
  bool first_operation() const noexcept override {
    return dispatches_received_ + combines_received_ == 0;
  }

  Result<void*> allocate(std::size_t bytes) override {
    if (config_.throughput()) return allocate_registered(bytes);
    std::shared_ptr<void> memory = resources_.pool->take(bytes);
    if (memory == nullptr) {
      return Status(StatusCode::out_of_memory,
                    fmt::format("allocate({} bytes): no GPU memory", bytes));
    }
    allocations_.push_back(memory);
    return memory.get();
  }

  Status deallocate(void* memory) override {
    const std::byte* const heap = heap_base();
    const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(memory) - heap);
    if (heap != nullptr && memory >= heap && offset < config_.options.registered_bytes &&
        heap_.deallocate(offset)) {
      return {};
    }
    const auto found = std::find_if(allocations_.begin(), allocations_.end(),
                                    [&](const auto& one) { return one.get() == memory; });
    if (found == allocations_.end()) {
      return {StatusCode::invalid_argument,
              fmt::format("deallocate({}): expected a pointer from this communicator's allocate",
                          fmt::ptr(memory))};
    }
    allocations_.erase(found);
    return {};
  }

  Statistics statistics() const override {
    Statistics statistics = statistics_;
    read_statistics(resources_, statistics);
    if (relay_ != nullptr) relay_->read(statistics);
    return statistics;
  }
  void start_profile(std::size_t events_max) override {
    resources_.geometry.recording =
        profile_.start(*resources_.pool, events_max, 2 * resources_.processors);
  }
  Status write_profile(const std::string& path) const override {
    return profile_.write(*resources_.pool, path, config_.rank);
  }

 private:
  /// Registered memory, which peers read.
  std::byte* heap_base() const noexcept {
    return config_.throughput() ? resources_.heaps[static_cast<std::size_t>(config_.rank)].base()
                                : nullptr;
  }
  Result<void*> allocate_registered(std::size_t bytes) {
    const std::optional<std::size_t> offset = heap_.allocate(bytes);
    if (offset) return static_cast<void*>(heap_base() + *offset);
    return no_registered_memory(bytes, heap_);
  }

  /// Where a call's rows lie, if peers can read them there: as they are, 16 bytes at a time.
  InPlace in_place(const ConstTensorView& rows, bool as_they_travel) const noexcept {
    InPlace place;
    if (relay_ != nullptr) return place;  // Other nodes cannot.
    const std::int64_t stride = rows.strides[0] * static_cast<std::int64_t>(size_of(rows.dtype));
    const bool fits =
        as_they_travel && rows.given() && rows.dims == 2 && stride > 0 && stride % 16 == 0 &&
        stride <= std::numeric_limits<std::int32_t>::max() &&
        registered_offset(heap_base(), config_.options.registered_bytes, rows, &place.offset) &&
        place.offset % 16 == 0;
    if (fits) place.stride = static_cast<std::uint32_t>(stride);
    return place;
  }
  InPlace rows_in_place(const DispatchSend& request) const noexcept {
    const ConstTensorView& x = request.x;
    if (whole_records(request, config_.shape.hidden)) {
      ConstTensorView records = x;
      records.shape[1] += static_cast<std::int64_t>(
          codec::scale_bytes(request.codec, config_.shape.hidden));  // Elements of one byte.
      InPlace place = in_place(records, true);
      place.scales = place.stride != 0;
      if (place.scales) return place;
    }
    return in_place(x, x.dtype == codec::row_dtype(request.codec));
  }
  bool reads_results(const CombineSend& request) const noexcept {
    return config_.options.y_memory == YMemory::registered && request.reduce != Reduce::single &&
           request.y.given() && request.handle.given() &&
           request.y.dtype == codec::row_dtype({request.codec, ScaleForm::f32, 128});
  }

  static std::size_t slot(std::uint64_t number) noexcept { return number % kMaxInFlight; }
  /// Of what there is once for every operation in flight.
  std::size_t place_of(std::uint64_t number) const noexcept {
    return number % static_cast<std::uint64_t>(config_.options.in_flight);
  }

  Handle take_handle(const Handle& given) {
    if (given.given()) return given;
    std::shared_ptr<void> memory = handles_.take(handle_layout_.bytes);
    return memory == nullptr ? Handle() : Handle(memory, handle_layout_.bytes, Device::cuda);
  }

  void take_rows(const DispatchOutputs& outputs, const DispatchSend& request, Received& received,
                 DispatchArgs& args) {
    Result<ReceiveBuffers> buffers =
        resolve_buffers(outputs,
                        {request.placement, config_.local_experts(), config_.shape.hidden,
                         request.codec, rows_max(known_, request.placement), Device::cuda},
                        [&](std::size_t bytes) { return rows_.take(bytes); });
    if (!buffers) {
      received.status = buffers.status();
      args.drop = true;
      return;
    }
    received.rows = buffers->rows;
    received.scales = buffers->scales;
    received.owner = std::move(buffers->owner);
    set_rows(known_, request, received, outputs.zero_padding, args);
  }

  /// Blocks of a launch: those that do an operation, and those that carry what comes from other nodes meanwhile.
  struct Blocks {
    int workers;
    int carriers;
  };
  /// As many workers as are wanted, but no more than `most`; all: blocks that fit beside what others have.
  Blocks blocks_of(int wanted, int most, int all) const noexcept {
    // A GPU that a rank has to itself has so few only where it is simulated: they fit there.
    const bool few = all < 2 * kFerryBlocks;
    // Where there is no room for both, what comes is carried by the ferry's own kernel alone.
    const bool carry = relay_ != nullptr && !(few && resources_.sharers > 1);
    const int carriers = carry ? kFerryBlocks : 0;
    if (!few) most = std::min(most, all - carriers);
    return {std::clamp(std::min(wanted, most), 1, kBlocksMax), carriers};
  }

  Blocks latency_blocks(int wanted, const Footprint& footprint, bool on_own_gpu) {
    const int per_processor = blocks_per_processor(footprint, on_own_gpu);
    int all = resources_.processors * per_processor;
    // Ranks that share the GPU leave as much as each of them takes: whatever a rank queues between its
    // calls must run while the others wait for it. By whole multiprocessors: blocks of some kernels need one each,
    // and those of others may lie on as many as there are blocks.
    if (resources_.sharers > 1) {
      all = std::min(all, resources_.processors / (resources_.sharers + 1));
    }
    int most = all;
    // What comes from other nodes is carried by kernels, which need multiprocessors of their own, also beside two launches: of
    // blocks that take half a multiprocessor, or a whole one. Their stream is the first to get what is free.
    if (relay_ != nullptr) {
      const int left = resources_.processors - resources_.processors / 8;
      most = std::min(most, left * std::min(per_processor, 2) / 2);
    }
    if (config_.options.block_limit > 0) most = std::min(most, config_.options.block_limit);
    return blocks_of(wanted, most, all);
  }

  /// Multiprocessors, one block on each, that move rows as fast as the links of an H200 do (docs/cuda-engine.md): also rows that
  /// are moved twice here; and rows that are pulled from where they lie to where they belong, or to be summed: more are slower.
  static constexpr int kThroughputBlocks = 24;
  static constexpr int kPullingBlocks = 12;

  Blocks throughput_blocks(bool pulls_only) const noexcept {
    int blocks = config_.options.block_limit;
    if (blocks <= 0) blocks = pulls_only ? kPullingBlocks : kThroughputBlocks;
    const int shares = resources_.sharers > 1 ? resources_.sharers + 1 : 1;
    const int all = resources_.processors / shares;
    int most = all;
    // As in latency mode, for what comes from other nodes.
    if (relay_ != nullptr) most = std::min(most, resources_.processors - resources_.processors / 8);
    return blocks_of(blocks, most, all);
  }

  /// Blocks of a kernel that fit on one multiprocessor at once; 0 on error. Asking CUDA takes 0.5 us: once.
  int blocks_per_processor(const Footprint& footprint, bool on_own_gpu) {
    for (const auto& [known, blocks] : occupancy_) {
      if (known == footprint) return blocks;
    }
    int blocks = 0;
    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, footprint.kernel, kBlockThreads,
                                                      footprint.shared_bytes) != cudaSuccess) {
      return 0;
    }
    if (on_own_gpu) occupancy_.emplace_back(footprint, blocks);
    return blocks;
  }

  template <typename Args>
  static void set_blocks(Blocks blocks, Args& args, Launch& launch) noexcept {
    launch.blocks = blocks.workers + blocks.carriers;
    args.geometry.carriers = blocks.carriers;
  }

  template <typename Args>
  int launch_throughput(Args& args, const InPlace& own, std::uint64_t number, Launch& launch) {
    Desk desk = resources_.desks[place_of(number)];
    // Where it was measured: through the ring, of rows without scales.
    bool pulls_only = own.stride != 0 && args.aligned && desk.ring_bytes != 0;
    if constexpr (std::is_same_v<Args, DispatchArgs>) {
      pulls_only = pulls_only && args.layout == Layout::rank_major && args.x_dtype != DType::e4m3;
    } else {
      pulls_only = pulls_only && latest_layout_ == Layout::rank_major &&
                   args.codec == DType::bf16 && args.row_weights == nullptr;
    }
    set_blocks(throughput_blocks(pulls_only), args, launch);
    desk.own = own;
    constexpr int kKind = std::is_same_v<Args, DispatchArgs> ? 0 : 1;
    desk.done += kKind * Desk::kHalves;
    if constexpr (std::is_same_v<Args, DispatchArgs>) {
      return launch_throughput_dispatch(args, desk, launch);
    } else {
      return launch_throughput_combine(args, desk, launch);
    }
  }

  /// own: rows that peers read where they lie; number: of the operation. lends: whether order_ is to find out if it is captured.
  template <typename Args>
  Status run(Args& args, const InPlace& own, std::uint64_t number, void* stream,
             const RowCounts& row_counts = {}, bool lends = false) {
    const DeviceGuard guard(resources_.device, resources_.context);
    // Whatever goes wrong before it, the launch is tried: without it this rank's epoch falls behind.
    Status status = guard.status();
    if (status.ok()) status = order_.follow(static_cast<cudaStream_t>(stream), lends);
    // Throughput mode does not ask.
    const Cut cut =
        config_.throughput()
            ? Cut()
            : cut_for({args.tokens, config_.ranks, args.geometry.hidden, resources_.processors});
    args.many = std::is_same_v<Args, DispatchArgs> ? cut.many_dispatched : cut.many_combined;
    Launch launch;
    launch.stream = stream;
    launch.overlap = resources_.overlap;
    launch.row_counts = row_counts;
    Status launched;
    if (config_.throughput()) {
      launched = cuda_status(static_cast<cudaError_t>(launch_throughput(args, own, number, launch)),
                             "launching kernels");
    } else if constexpr (std::is_same_v<Args, DispatchArgs>) {
      args.numbers = numbers_rows_at_once(args);
      const Footprint chosen = choose_dispatch(args);
      set_blocks(latency_blocks(cut.blocks, chosen, guard.status().ok()), args, launch);
      launched = cuda_status(static_cast<cudaError_t>(launch_dispatch(args, chosen, launch)),
                             "launching dispatch");
      if (launched.ok()) {
        launched = cuda_status(static_cast<cudaError_t>(launch_row_counts(args, launch)),
                               "launching a kernel for row_counts");
      }
    } else {
      const Footprint chosen = choose_combine(args);
      set_blocks(latency_blocks(cut.blocks, chosen, guard.status().ok()), args, launch);
      launched = cuda_status(static_cast<cudaError_t>(launch_combine(args, chosen, launch)),
                             "launching combine");
    }
    // Also where some of an operation's kernels were queued, but not all.
    Status ordered = order_.launched(static_cast<cudaStream_t>(stream));
    if (launched.ok()) launched = std::move(ordered);
    return status.ok() ? launched : status;
  }

  /// A send half's error is told by its receive half.
  void remember(Status status) {
    if (error_.ok()) error_ = std::move(status);
  }
  Status take_error(Status status) {
    return error_.ok() ? std::move(status) : std::exchange(error_, Status());
  }

  EngineConfig config_;
  Resources resources_;
  std::unique_ptr<relay::Relay> relay_;  // Null on one node.
  Profile profile_;
  memory::RegionAllocator heap_{config_.throughput() ? config_.options.registered_bytes : 0};
  DeviceBuffers rows_;
  DeviceBuffers handles_;
  window::HandleLayout handle_layout_;
  Known known_{config_, resources_.geometry, handle_layout_,
               window::SumLanes::needed(config_.nodes)};
  std::array<Pending<DispatchArgs, DispatchSend>, kMaxInFlight> dispatches_;
  std::array<Pending<CombineArgs, CombineSend>, kMaxInFlight> combines_;
  std::uint64_t dispatches_sent_ = 0;
  std::uint64_t dispatches_received_ = 0;
  std::uint64_t combines_sent_ = 0;
  std::uint64_t combines_received_ = 0;
  std::vector<std::pair<Footprint, int>> occupancy_;
  // Of dispatches. The host does not know that of a combine's handle; most are of this one.
  Layout latest_layout_{};
  StreamOrder order_{resources_.sharers > 1};
  CallerMemory reports_{"report", false};
  CallerMemory row_counts_{"row_counts", true};
  Status error_;
  Statistics statistics_;
  std::vector<std::shared_ptr<void>> allocations_;
  // What captured calls use: their graphs may be replayed at any time.
  std::vector<std::shared_ptr<void>> captured_rows_;
  std::vector<Handle> captured_handles_;
  Watch watch_;
};

}  // namespace

Result<std::unique_ptr<Engine>> create_engine(EngineConfig config,
                                              std::shared_ptr<bootstrap::Group> group,
                                              base::Deadline deadline) {
  // Another rank's build may be without this engine, and says so here.
  if (Status built = group->agree({}, deadline); !built.ok()) return built;
  Result<Resources> resources = take_resources(config, *group, deadline);
  if (!resources) return resources.status();
  std::unique_ptr<relay::Relay> relay;
  if (config.nodes.several()) {
    Result<std::unique_ptr<relay::Relay>> opened =
        open_link(config, resources.value(), *group, deadline);
    if (!opened) return opened.status();
    relay = std::move(opened).value();
  }
  return build(*group, deadline, [&] {
    return std::make_unique<CudaEngine>(std::move(config), group, std::move(resources).value(),
                                        std::move(relay));
  });
}

}  // namespace sluice::engine::cuda
