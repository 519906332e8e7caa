// SPDX-License-Identifier: MIT
#include "support/scripted_network.hpp"

#include <cerrno>
#include <chrono>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/test_point.hpp"
#include "support/forwarding_endpoint.hpp"

namespace sluice::support {
namespace {

using transport::Chunk;
using transport::Endpoint;
using transport::Event;
using transport::Network;
using transport::Posted;

/// A script, for as long as it may be asked: relays outlive their worlds for a while.
class Play {
 public:
  explicit Play(NetworkScript script) : script_(std::move(script)) {}
  bool delays() const noexcept { return delays_; }

  bool swallows(int from, int to) {
    return ask([&] { return script_.swallows && script_.swallows(from, to); });
  }
  std::chrono::milliseconds delay(int from, int to, std::uint32_t bytes) {
    return ask([&] { return script_.delays(from, to, bytes); });
  }
  int lost_by(int rank) {
    return ask([&] { return script_.loses ? script_.loses(rank) + 1 : 0; }) - 1;
  }
  bool stalls(int rank) {
    return ask([&] { return script_.stalls && script_.stalls(rank); });
  }
  bool exhausts(int rank) {
    return ask([&] { return script_.exhausts && script_.exhausts(rank); });
  }
  bool has_no_thread(int rank) {
    return ask([&] { return script_.has_no_thread && script_.has_no_thread(rank); });
  }
  /// After it nothing of the script is called any more.
  void end() {
    const std::unique_lock lock(mutex_);
    over_ = true;
  }

 private:
  template <typename Question>
  auto ask(Question question) -> decltype(question()) {
    const std::shared_lock lock(mutex_);
    return over_ ? decltype(question())() : question();
  }

  const NetworkScript script_;
  const bool delays_ = script_.delays != nullptr;
  std::shared_mutex mutex_;
  bool over_ = false;  // Guarded by mutex_.
};

using Script = std::shared_ptr<Play>;

std::mutex mutex;
Script set;  // Guarded by mutex.

Script current_script() {
  const std::lock_guard lock(mutex);
  return set;
}

void replace(Script script) {
  const std::lock_guard lock(mutex);
  set = std::move(script);
}

class ScriptedEndpoint final : public ForwardingEndpoint {
 public:
  ScriptedEndpoint(std::unique_ptr<Endpoint> inner, int rank)
      : ForwardingEndpoint(std::move(inner)), rank_(rank), script_(current_script()) {}

  Posted put(const Chunk& chunk) override {
    if (chunk.peer == lost_) return Posted::gone;
    if (script_->swallows(rank_, chunk.peer)) return Posted::yes;
    if (!script_->delays()) return ForwardingEndpoint::put(chunk);
    delayed_.push_back({chunk, Clock::now() + script_->delay(rank_, chunk.peer, chunk.bytes)});
    return Posted::yes;
  }
  std::size_t poll(std::span<Event> events) override {
    const int lost = script_->lost_by(rank_);
    if (lost >= 0 && lost_ < 0) {
      lost_ = lost;
      events[0] = {Event::Kind::lost, lost, 0, 0};
      return 1;
    }
    put_delayed();
    return ForwardingEndpoint::poll(events);
  }
  // Chunks that are on their way arrive all the same.
  void abandon(int peer) override {
    if (!script_->delays()) ForwardingEndpoint::abandon(peer);
  }
  std::optional<std::uint64_t> mark(int peer) override {
    if (!delayed_.empty()) return std::nullopt;
    return ForwardingEndpoint::mark(peer);
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Delayed {
    Chunk chunk;
    Clock::time_point due;
  };

  void put_delayed() {
    const auto now = Clock::now();
    std::erase_if(delayed_, [&](const Delayed& each) {
      return each.due <= now && ForwardingEndpoint::put(each.chunk) != Posted::busy;
    });
  }

  std::vector<Delayed> delayed_;
  int rank_;
  Script script_;
  int lost_ = -1;
};

class Wrapper final : public Network {
 public:
  explicit Wrapper(std::shared_ptr<Network> inner) : inner_(std::move(inner)) {
    relay = inner_->relay;
  }
  Result<std::unique_ptr<Endpoint>> open(int rank, int ranks, std::uint64_t meeting,
                                         const transport::Purpose& purpose) override {
    auto inner = inner_->open(rank, ranks, meeting, purpose);
    if (!inner.ok()) return inner.status();
    return std::unique_ptr<Endpoint>(
        std::make_unique<ScriptedEndpoint>(std::move(inner).value(), rank));
  }

 private:
  std::shared_ptr<Network> inner_;
};

std::shared_ptr<Network> wrap(std::shared_ptr<Network> network) {
  transport::Adversity adversity;
  adversity.late_read = 512;
  auto late = transport::memory_network(adversity);
  late->relay = network->relay;
  return std::make_shared<Wrapper>(std::move(late));
}

void at_point(base::TestPoint point, int rank, int /*peer*/) {
  const Script script = current_script();
  if (script == nullptr) return;
  if (point == base::TestPoint::before_progress && script->has_no_thread(rank)) {
    throw std::system_error(EAGAIN, std::generic_category());
  }
  if (point != base::TestPoint::progress) return;
  if (script->exhausts(rank)) throw std::bad_alloc();
  while (script->stalls(rank)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

ScriptedNetwork::ScriptedNetwork(NetworkScript script) {
  replace(std::make_shared<Play>(std::move(script)));
  base::test_point_hook = &at_point;
  transport::network_hook = &wrap;
}

ScriptedNetwork::~ScriptedNetwork() {
  transport::network_hook = nullptr;
  base::test_point_hook = nullptr;
  current_script()->end();
  replace(nullptr);
}

}  // namespace sluice::support
