// SPDX-License-Identifier: MIT
#include "sluice/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <utility>

#include "api/arguments.hpp"
#include "api/configuration.hpp"
#include "api/guarded.hpp"
#include "api/row_counts.hpp"
#include "base/log.hpp"
#include "engine/cpu/cpu_engine.hpp"
#include "engine/cuda/cuda_engine.hpp"
#include "engine/cuda/sizes.hpp"
#include "memory/pages.hpp"
#include "relay/relay.hpp"
#include "window/window_layout.hpp"

namespace sluice {
namespace {

/// A send half: its request, which the engine reads until the receive half is done, and what was found wrong with it.
template <typename Request>
struct SentHalf {
  std::uint64_t epoch = 0;
  Status status;
  Request request;
};

/// Send halves that wait for their receive halves, oldest first. Each stays where it is.
template <typename Request>
class SentHalves {
 public:
  SentHalf<Request>& add() {
    SentHalf<Request>& half = slots_[(first_ + count_++) % slots_.size()];
    half.status = {};
    half.request = {};
    return half;
  }
  SentHalf<Request>& oldest() noexcept { return slots_[first_]; }
  const SentHalf<Request>& oldest() const noexcept { return slots_[first_]; }
  bool empty() const noexcept { return count_ == 0; }
  int count() const noexcept { return static_cast<int>(count_); }
  void drop_oldest() noexcept {
    first_ = (first_ + 1) % slots_.size();
    --count_;
  }

 private:
  std::array<SentHalf<Request>, kMaxInFlight> slots_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

/// Handles are the only things that a call that is over must not keep.
void let_go(engine::DispatchSend& request) noexcept {
  request.cached = {};
}
void let_go(engine::CombineSend& request) noexcept {
  request.handle = {};
}

Status too_many(const char* operation, int limit) {
  return {StatusCode::failed_precondition,
          fmt::format("{}: {} send halves wait for their receive halves, expected fewer than "
                      "options.in_flight = {}",
                      operation, limit, limit)};
}

template <typename Request>
Status out_of_order(const char* operation, std::uint64_t seen, const SentHalves<Request>& pending) {
  if (pending.empty()) {
    return {StatusCode::failed_precondition,
            fmt::format("{} receive half of epoch {}: no send half waits for it", operation, seen)};
  }
  return {
      StatusCode::failed_precondition,
      fmt::format("{} receive half of epoch {}, expected that of the oldest send half, epoch {}",
                  operation, seen, pending.oldest().epoch)};
}

}  // namespace

struct Communicator::Impl {
  engine::EngineConfig config;
  SentHalves<engine::DispatchSend> dispatches;
  SentHalves<engine::CombineSend> combines;
  Status broken;
  std::unique_ptr<engine::Engine>
      engine;  // The last: its kernels may still read what requests keep.

  /// A call, none of whose exceptions leave here: nobody knows how far it has come, so this communicator
  /// makes no more.
  template <typename Call>
  auto guarded(const Call& call) noexcept -> decltype(call()) {
    if (broken.ok()) {
      try {
        return call();
      } catch (...) {
        broken = api::status_of_caught();
      }
    }
    decltype(call()) answer;
    try {
      answer.status =
          Status(broken.code(), broken.message() + "; this communicator can make no more calls");
    } catch (...) {
      answer.status = Status(broken.code(), {});
    }
    return answer;
  }

  std::chrono::nanoseconds timeout(std::optional<std::chrono::nanoseconds> given) const {
    if (given) return *given;
    return engine->first_operation() ? config.options.first_deadline : config.options.deadline;
  }

  // Runs the send half of a request that `check` makes; what is wrong with it becomes a refusal.
  // `whole`: its receive half follows at once.
  template <typename Check>
  DispatchTicket send_dispatch(const DispatchOptions& options, bool whole, Check&& check) {
    if (dispatches.count() == config.options.in_flight) {
      return {too_many("dispatch", config.options.in_flight), 0};
    }
    auto& half = dispatches.add();
    half.request.timeout = timeout(options.deadline);
    half.request.whole = whole;
    half.request.stream = options.stream;
    half.status = check(half.request);
    half.epoch = engine->send_dispatch(half.request);
    return {half.status, half.epoch};
  }

  DispatchTicket send_dispatch(const ConstTensorView& x, const ConstTensorView& topk_ids,
                               const ConstTensorView& topk_weights, std::int64_t capacity,
                               const DispatchOptions& options, bool whole) {
    return send_dispatch(options, whole, [&](engine::DispatchSend& send) {
      return api::check_dispatch(config, x, topk_ids, topk_weights, capacity, options, send);
    });
  }
  DispatchTicket send_dispatch(const ConstTensorView& x, const Handle& cached,
                               const DispatchOptions& options, bool whole) {
    return send_dispatch(options, whole, [&](engine::DispatchSend& send) {
      return api::check_cached_dispatch(config, x, cached, options, send);
    });
  }

  CombineTicket send_combine(const ConstTensorView& y, const Handle& handle,
                             const CombineOptions& options, bool whole) {
    if (combines.count() == config.options.in_flight) {
      return {too_many("combine", config.options.in_flight), 0};
    }
    auto& half = combines.add();
    half.request.timeout = timeout(options.deadline);
    half.request.whole = whole;
    half.request.stream = options.stream;
    half.status = api::check_combine(config, y, handle, options, half.request);
    half.epoch = engine->send_combine(half.request);
    return {half.status, half.epoch};
  }

  Received receive_dispatch(const DispatchTicket& ticket, const DispatchOutputs& outputs) {
    if (dispatches.empty() || ticket.epoch != dispatches.oldest().epoch) {
      Received received;
      received.status = ticket.epoch == 0 && !ticket.status.ok()
                            ? ticket.status
                            : out_of_order("dispatch", ticket.epoch, dispatches);
      return received;
    }
    return receive_oldest_dispatch(outputs);
  }

  Received receive_oldest_dispatch(const DispatchOutputs& outputs) {
    auto& half = dispatches.oldest();
    Status memory =
        outputs.handle.given() ? api::check_handle_memory(config, outputs.handle) : Status();
    Status counts = api::check_row_counts(config, outputs.row_counts);
    const bool counted = counts.ok();
    Received received = memory.ok() && counted
                            ? engine->receive_dispatch(outputs, {})
                            : drop_dispatch(outputs, std::move(memory), std::move(counts));
    received.epoch = half.epoch;
    if (config.options.device == Device::cpu && counted) {
      api::write_row_counts(received, config.local_experts(), outputs.row_counts);
    }
    if (!half.status.ok()) received.status = std::move(half.status);
    if (outputs.report != nullptr && config.options.device == Device::cpu) {
      *outputs.report = received.report;
    }
    let_go(half.request);
    dispatches.drop_oldest();
    return received;
  }

  /// Of outputs without what cannot be used; the handle lies in the library's memory then.
  Received drop_dispatch(const DispatchOutputs& outputs, Status memory, Status counts) {
    DispatchOutputs usable = outputs;
    if (!memory.ok()) usable.handle = {};
    if (!counts.ok()) usable.row_counts = {};
    return engine->receive_dispatch(usable, std::move(memory.ok() ? counts : memory));
  }

  CombineResult receive_combine(const CombineTicket& ticket, TensorView out,
                                const CombineOutputs& outputs) {
    if (combines.empty() || ticket.epoch != combines.oldest().epoch) {
      return {ticket.epoch == 0 && !ticket.status.ok()
                  ? ticket.status
                  : out_of_order("combine", ticket.epoch, combines),
              {}};
    }
    auto& half = combines.oldest();
    if (half.status.ok()) {
      half.status = api::check_combine_outputs(config, engine->combine_tokens(),
                                               half.request.row_weights.given(), half.request.y,
                                               out, outputs);
    }
    CombineResult result = engine->receive_combine(out, outputs, std::move(half.status));
    let_go(half.request);
    combines.drop_oldest();
    if (outputs.report != nullptr && config.options.device == Device::cpu) {
      *outputs.report = result.report;
    }
    return result;
  }
};

Communicator::Communicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
Communicator::~Communicator() = default;

Result<Communicator> Communicator::create(World& world, const Shape& shape,
                                          const CommunicatorOptions& options) {
  if (world.group() == nullptr) return world.barrier();  // Which says what is wrong with it.
  return api::guarded_for_all(*world.group(), [&]() -> Result<Communicator> {
    Result<engine::EngineConfig> config =
        api::resolve(shape, options, world.rank(), world.group()->nodes());
    // A rank whose own arguments are wrong tells the others, so that all get one Status. A description has a number for every
    // expert: it is told where fingerprints differ.
    const std::string description = config ? api::describe(*config) : "";
    const std::uint64_t fingerprint = api::fingerprint_of(description);
    Result<std::vector<std::string>> gathered = world.all_gather(
        config ? fmt::format("ok\n{:016x}", fingerprint) : "bad\n" + config.status().message());
    if (!gathered) return gathered.status();
    for (std::size_t rank = 0; rank < gathered->size(); ++rank) {
      const std::string& text = (*gathered)[rank];
      if (text.rfind("bad\n", 0) == 0) {
        return Status(StatusCode::invalid_argument,
                      fmt::format("rank {}: {}", rank, text.substr(4)));
      }
    }
    if (std::adjacent_find(gathered->begin(), gathered->end(), std::not_equal_to<>()) !=
        gathered->end()) {
      gathered = world.all_gather(description);
      if (!gathered) return gathered.status();
      return api::compare(*gathered);
    }

    config->fingerprint = fingerprint;
    auto impl = std::make_unique<Impl>();
    impl->config = *config;
    const base::Deadline deadline = base::Deadline::after(options.first_deadline);
    Result<std::unique_ptr<engine::Engine>> engine =
        options.device == Device::cpu
            ? engine::cpu::create_engine(std::move(config).value(), world.group(), deadline)
            : engine::cuda::create_engine(std::move(config).value(), world.group(), deadline);
    if (!engine) return engine.status();
    impl->engine = std::move(engine).value();
    return Communicator(std::move(impl));
  });
}

int Communicator::rank() const noexcept {
  return impl_->config.rank;
}
int Communicator::size() const noexcept {
  return impl_->config.ranks;
}
const Shape& Communicator::shape() const noexcept {
  return impl_->config.shape;
}
Mode Communicator::mode() const noexcept {
  return impl_->config.options.mode;
}
int Communicator::local_experts() const noexcept {
  return impl_->config.local_experts();
}
std::span<const std::int32_t> Communicator::local_expert_ids() const noexcept {
  return impl_->config.map.experts_of(impl_->config.rank);
}
std::size_t Communicator::handle_bytes() const noexcept {
  return api::handle_layout(impl_->config).bytes;
}

DispatchTicket Communicator::send_dispatch(ConstTensorView x, ConstTensorView topk_ids,
                                           ConstTensorView topk_weights,
                                           const DispatchOptions& options) {
  return impl_->guarded([&] {
    return impl_->send_dispatch(x, topk_ids, topk_weights, options.capacity, options, false);
  });
}

DispatchTicket Communicator::send_dispatch(ConstTensorView x, const Handle& cached,
                                           const DispatchOptions& options) {
  return impl_->guarded([&] { return impl_->send_dispatch(x, cached, options, false); });
}

Received Communicator::receive_dispatch(const DispatchTicket& ticket,
                                        const DispatchOutputs& outputs) {
  return impl_->guarded([&] { return impl_->receive_dispatch(ticket, outputs); });
}

Received Communicator::dispatch(ConstTensorView x, ConstTensorView topk_ids,
                                ConstTensorView topk_weights, const DispatchOptions& options,
                                const DispatchOutputs& outputs) {
  std::int64_t capacity = options.capacity;
  const Layout layout = options.layout.value_or(impl_->config.options.layout);
  if (layout == Layout::expert_slab && capacity == 0 && outputs.rows.dims == 3) {
    capacity = outputs.rows.shape[1];
  }
  return impl_->guarded([&] {
    return impl_->receive_dispatch(
        impl_->send_dispatch(x, topk_ids, topk_weights, capacity, options, true), outputs);
  });
}

Received Communicator::dispatch(ConstTensorView x, const Handle& cached,
                                const DispatchOptions& options, const DispatchOutputs& outputs) {
  return impl_->guarded([&] {
    return impl_->receive_dispatch(impl_->send_dispatch(x, cached, options, true), outputs);
  });
}

Received Communicator::plan(ConstTensorView topk_ids, ConstTensorView topk_weights,
                            const DispatchOptions& options, const DispatchOutputs& outputs) {
  return impl_->guarded([&] {
    const DispatchTicket planned =
        impl_->send_dispatch(options, true, [&](engine::DispatchSend& send) {
          return api::check_plan(impl_->config, topk_ids, topk_weights, options, send);
        });
    return impl_->receive_dispatch(planned, outputs);
  });
}

CombineTicket Communicator::send_combine(ConstTensorView y, const Handle& handle,
                                         const CombineOptions& options) {
  return impl_->guarded([&] { return impl_->send_combine(y, handle, options, false); });
}

CombineResult Communicator::receive_combine(const CombineTicket& ticket,
                                            const CombineOutputs& outputs) {
  return impl_->guarded([&] { return impl_->receive_combine(ticket, outputs.out, outputs); });
}

CombineResult Communicator::combine(ConstTensorView y, const Handle& handle, TensorView out,
                                    const CombineOptions& options, const CombineOutputs& outputs) {
  return impl_->guarded([&] {
    return impl_->receive_combine(impl_->send_combine(y, handle, options, true), out, outputs);
  });
}

Result<void*> Communicator::allocate(std::size_t bytes) {
  return api::guarded([&] { return impl_->engine->allocate(bytes); });
}
Status Communicator::deallocate(void* memory) {
  return api::guarded([&] { return impl_->engine->deallocate(memory); });
}
Statistics Communicator::statistics() const {
  try {
    return impl_->engine->statistics();
  } catch (const std::exception&) {
    return {};
  }
}
void Communicator::start_profile(std::size_t events_max) {
  try {
    impl_->engine->start_profile(events_max);
  } catch (const std::exception& error) {
    base::log_warn("rank {}: no profile of {} events: {}", rank(), events_max, error.what());
  }
}
Status Communicator::write_profile(const std::string& path) const {
  return api::guarded([&] { return impl_->engine->write_profile(path); });
}

namespace {

/// What this rank takes.
Result<std::vector<SizeEntry>> account_of(const engine::EngineConfig& config) {
  const std::size_t handle = api::handle_layout(config).bytes;
  if (config.options.device == Device::cuda) {
    Result<std::vector<SizeEntry>> entries = engine::cuda::sizes(config);
    if (entries) entries->push_back({"handle", handle});
    return entries;
  }
  const window::WindowLayout layout(config.window);
  const std::size_t parts[] = {layout.signal_bytes(),           layout.dispatch_metadata_bytes(),
                               layout.combine_metadata_bytes(), layout.combine_slot_bytes(),
                               layout.dispatch_staging_bytes(), layout.combine_staging_bytes()};
  std::size_t used = 0;
  for (const std::size_t part : parts) used += part;
  const std::size_t window = memory::rounded_to_pages(layout.bytes());
  const std::size_t heap = memory::rounded_to_pages(config.options.registered_bytes);
  std::vector<SizeEntry> entries = {{"signals", parts[0]},
                                    {"dispatch metadata", parts[1]},
                                    {"combine metadata", parts[2]},
                                    {"combine slots", parts[3]},
                                    {"dispatch staging", parts[4]},
                                    {"combine staging", parts[5]},
                                    {"page rounding", window - used},
                                    {"window", window},
                                    {"registered memory", heap},
                                    {"handle", handle}};
  if (config.nodes.several()) {
    const Result<window::RelayLayout> relay =
        relay::usual_layout(layout, config.nodes, config.rank,
                            std::max(layout.dispatch_row_stride(), layout.combine_row_stride()));
    if (!relay) return relay.status();
    entries.push_back({"other nodes", memory::rounded_to_pages(relay->bytes()) - window});
  }
  return entries;
}

}  // namespace

Result<std::vector<SizeEntry>> Communicator::sizes(const Shape& shape, int ranks,
                                                   const CommunicatorOptions& options) {
  return api::guarded([&] { return sizes(shape, std::vector<int>{ranks}, options); });
}

Result<std::vector<SizeEntry>> Communicator::sizes(const Shape& shape,
                                                   const std::vector<int>& node_sizes,
                                                   const CommunicatorOptions& options) {
  return api::guarded([&]() -> Result<std::vector<SizeEntry>> {
    for (const int size : node_sizes) {
      if (size >= 1 && size <= kMaxRanks) continue;
      return Status(StatusCode::invalid_argument,
                    fmt::format("a node of {} ranks, expected 1 to {}", size, kMaxRanks));
    }
    const routing::NodeMap nodes = routing::NodeMap::of_sizes(node_sizes);
    std::vector<SizeEntry> largest;
    std::size_t most = 0;
    for (int rank = 0; rank < std::max(nodes.ranks(), 1); ++rank) {
      Result<engine::EngineConfig> config = api::resolve(shape, options, rank, nodes);
      if (!config) return config.status();
      Result<std::vector<SizeEntry>> entries = account_of(*config);
      if (!entries) return entries.status();
      std::size_t all = 0;
      for (const SizeEntry& entry : *entries) all += entry.bytes;
      if (all <= most) continue;
      most = all;
      largest = std::move(entries).value();
    }
    return largest;
  });
}

}  // namespace sluice
