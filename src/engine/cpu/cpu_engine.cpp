// SPDX-License-Identifier: MIT
#include "engine/cpu/cpu_engine.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "bootstrap/processors.hpp"
#include "engine/build.hpp"
#include "engine/cpu/context.hpp"
#include "engine/registered_rows.hpp"
#include "engine/relay_site.hpp"
#include "memory/pages.hpp"

namespace sluice::engine::cpu {
namespace {

/// Operations of one kind between their halves, oldest first.
template <typename Operation>
class InFlight {
 public:
  explicit InFlight(const EngineConfig& config) : depth_(config.options.in_flight) {
    for (int i = 0; i < depth_; ++i) slots_[static_cast<std::size_t>(i)].reserve(config);
  }
  Operation& send() noexcept {
    ++sent_;
    Operation& operation = at(sent_);
    operation.epoch = sent_;
    return operation;
  }
  Operation& oldest() noexcept { return at(received_ + 1); }
  const Operation& oldest() const noexcept {
    return slots_[(received_ + 1) % static_cast<std::uint64_t>(depth_)];
  }
  void received() noexcept {
    oldest().request = {};
    ++received_;
  }
  std::uint64_t ended() const noexcept { return received_; }

 private:
  Operation& at(std::uint64_t epoch) noexcept {
    return slots_[epoch % static_cast<std::uint64_t>(depth_)];
  }

  int depth_;
  std::uint64_t sent_ = 0;      // Epoch of the last send half.
  std::uint64_t received_ = 0;  // Epoch of the last receive half.
  std::array<Operation, kMaxInFlight> slots_;
};

class CpuEngine final : public Engine {
 public:
  CpuEngine(EngineConfig config, std::shared_ptr<bootstrap::Group> group,
            std::shared_ptr<relay::Memory> memory, std::unique_ptr<relay::Relay> relay, bool spins)
      : context_(std::move(config), std::move(group), std::move(memory), std::move(relay), spins),
        dispatches_(context_.config),
        combines_(context_.config) {}

  std::uint64_t send_dispatch(const DispatchSend& request) override {
    DispatchOperation& operation = dispatches_.send();
    operation.request = request;
    cpu::send_dispatch(context_, operation);
    return operation.epoch;
  }

  std::uint64_t send_combine(const CombineSend& request) override {
    CombineOperation& operation = combines_.send();
    operation.request = request;
    cpu::send_combine(context_, operation);
    return operation.epoch;
  }

  Received receive_dispatch(const DispatchOutputs& outputs, Status status) override {
    Received received =
        cpu::receive_dispatch(context_, dispatches_.oldest(), outputs, std::move(status));
    add_report(context_.statistics.dispatch_reports, received.report);
    dispatches_.received();
    return received;
  }

  CombineResult receive_combine(const TensorView& out, const CombineOutputs& outputs,
                                Status status) override {
    CombineResult result =
        cpu::receive_combine(context_, combines_.oldest(), out, outputs, std::move(status));
    add_report(context_.statistics.combine_reports, result.report);
    combines_.received();
    return result;
  }

  int combine_tokens() const noexcept override { return combines_.oldest().tokens; }
  bool first_operation() const noexcept override {
    return dispatches_.ended() + combines_.ended() == 0;
  }

  Result<void*> allocate(std::size_t bytes) override {
    const std::optional<std::size_t> offset = context_.heap.allocate(bytes);
    if (!offset) return no_registered_memory(bytes, context_.heap);
    std::byte* const memory = context_.heaps.base(context_.rank()) + *offset;
    if (Status status = commit(memory, bytes); !status.ok()) {
      context_.heap.deallocate(*offset);
      return status;
    }
    return static_cast<void*>(memory);
  }

  Status deallocate(void* memory) override {
    std::byte* const base = context_.heaps.base(context_.rank());
    auto* const at = static_cast<std::byte*>(memory);
    const std::size_t bytes = context_.heaps.bytes(context_.rank());
    const bool inside = bytes > 0 && at >= base && at < base + bytes;
    if (!inside || !context_.heap.deallocate(static_cast<std::size_t>(at - base))) {
      return {StatusCode::invalid_argument,
              fmt::format("deallocate({}): expected a pointer from this communicator's allocate",
                          fmt::ptr(memory))};
    }
    return {};
  }

  Statistics statistics() const override {
    Statistics statistics = context_.statistics;
    if (context_.relay != nullptr) context_.relay->read(statistics);
    return statistics;
  }
  void start_profile(std::size_t events_max) override { context_.timeline.start(events_max); }
  Status write_profile(const std::string& path) const override {
    return context_.timeline.write(path, context_.rank());
  }

 private:
  // Takes the memory now: a later store would fail with a signal.
  static Status commit(std::byte* memory, std::size_t bytes) {
#if defined(MADV_POPULATE_WRITE)
    const std::size_t page = memory::page_bytes();
    const auto begin = reinterpret_cast<std::uintptr_t>(memory) / page * page;
    const auto end = memory::rounded_to_pages(reinterpret_cast<std::uintptr_t>(memory) + bytes);
    if (::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE) != 0 &&
        errno != EINVAL) {  // EINVAL: a kernel before 5.14, which takes memory when touched.
      return {StatusCode::out_of_memory,
              fmt::format("allocate({} bytes): {}", bytes, std::strerror(errno))};
    }
#endif
    return {};
  }

  Context context_;
  InFlight<DispatchOperation> dispatches_;
  InFlight<CombineOperation> combines_;
};

}  // namespace

Result<std::unique_ptr<Engine>> create_engine(EngineConfig config,
                                              std::shared_ptr<bootstrap::Group> group,
                                              base::Deadline deadline) {
  const window::WindowLayout layout(config.window);
  std::size_t window_bytes = layout.bytes();
  // Before the endpoint, which uses it, and is destroyed first.
  std::shared_ptr<relay::Memory> memory;
  relay::Opening network;
  bool spins = false;
  if (config.nodes.several()) {
    Result<relay::Opening> opening = relay::open(
        *group, layout, std::max(layout.dispatch_row_stride(), layout.combine_row_stride()),
        /*message_bytes=*/0, /*gpu=*/std::nullopt, deadline);
    if (!opening) return opening.status();
    network = std::move(opening).value();
    window_bytes = network.layouts[static_cast<std::size_t>(config.rank)].bytes();
    spins = network.processors >= 2;  // One for the progress thread.
  } else {
    const Result<int> processors = bootstrap::processors_of_rank(*group, deadline);
    if (!processors) return processors.status();
    spins = *processors >= 1;
  }
  Result<memory::SharedRegion> windows = group->share(window_bytes, /*committed=*/true, deadline);
  if (!windows) return windows.status();
  Result<memory::SharedRegion> heaps =
      group->share(config.options.registered_bytes, /*committed=*/false, deadline);
  if (!heaps) return heaps.status();
  memory = std::make_shared<relay::Memory>(
      relay::Memory{std::move(windows).value(), std::move(heaps).value()});
  std::unique_ptr<relay::Relay> relay;
  if (config.nodes.several()) {
    const Status status = group->agree(network.add_memory(config.rank, *memory), deadline);
    if (!status.ok()) return status;
    Result<std::unique_ptr<relay::Relay>> started = relay::Relay::start(
        *group, std::move(network), relay_site(config, layout, memory, group->peers()),
        relay::host_traffic, deadline);
    if (!started) return started.status();
    relay = std::move(started).value();
  }
  return build(*group, deadline, [&] {
    return std::make_unique<CpuEngine>(std::move(config), group, std::move(memory),
                                       std::move(relay), spins);
  });
}

}  // namespace sluice::engine::cpu
