// SPDX-License-Identifier: MIT
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "bootstrap/thread_group.hpp"
#include "support/run_ranks.hpp"
#include "support/wired_network.hpp"
#include "support/wrong_scheme.hpp"

namespace sluice::support {

std::chrono::seconds default_watchdog() {
  const char* const seconds = std::getenv("SLUICE_TEST_WATCHDOG_SECONDS");
  return std::chrono::seconds(seconds == nullptr ? 150 : std::atoi(seconds));
}

namespace {

// Which ranks are done, so that a hang can be told from a slow test, and by name.
class Finish {
 public:
  explicit Finish(std::size_t ranks) : done_(ranks, false) {}

  void mark(std::size_t rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_[rank] = true;
    ++count_;
    changed_.notify_all();
  }
  /// A thread cannot be killed: one that hangs takes the test with it, after saying so.
  void wait_or_abort(std::chrono::milliseconds limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (changed_.wait_for(lock, limit, [this] { return count_ == done_.size(); })) return;
    std::fprintf(stderr, "watchdog: after %lld ms these ranks still run:",
                 static_cast<long long>(limit.count()));
    for (std::size_t rank = 0; rank < done_.size(); ++rank) {
      if (!done_[rank]) std::fprintf(stderr, " %zu", rank);
    }
    std::fprintf(stderr, "\n");
    std::abort();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> done_;
  std::size_t count_ = 0;
};

/// SLUICE_TEST_WIRE: the wire's weather (wired_network.hpp). SLUICE_TEST_SCHEME: how ranks are misled (wrong_scheme.hpp).
Result<std::vector<World>> make_worlds(const std::vector<int>& nodes) {
  const char* const weather = std::getenv("SLUICE_TEST_WIRE");
  const char* const scheme = std::getenv("SLUICE_TEST_SCHEME");
  if ((weather == nullptr && scheme == nullptr) || nodes.size() < 2) return World::threads(nodes);
  auto network = transport::network_of(base::Environment::read());
  if (network && weather != nullptr) network = wired(std::move(*network), weathers_named(weather));
  if (network && scheme != nullptr) network = with_scheme(std::move(*network), scheme);
  if (!network) return network.status();
  std::vector<World> worlds;
  for (auto& group :
       bootstrap::ThreadGroup::create_all(routing::NodeMap::of_sizes(nodes), *network)) {
    worlds.emplace_back(std::move(group), WorldOptions{});
  }
  return worlds;
}

}  // namespace

std::vector<int> node_sizes(int ranks) {
  const char* const text = std::getenv("SLUICE_TEST_NODE_SIZE");
  if (text == nullptr) return {ranks};
  std::vector<int> sizes;
  for (int left = ranks; left > 0; left -= sizes.back()) {
    sizes.push_back(std::min(std::max(1, std::atoi(text)), left));
  }
  return sizes;
}

RunResult run_as_threads(int ranks, const RankBody& body, const RunOptions& options) {
  RunResult result;
  const auto count = static_cast<std::size_t>(ranks);
  result.notes.resize(count);
  Result<std::vector<World>> worlds = make_worlds(node_sizes(ranks));
  if (!worlds) {
    result.failures.push_back("World::threads: " + worlds.status().to_string());
    return result;
  }
  std::vector<Findings> findings(count);
  Finish finish(count);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      World& world = (*worlds)[rank];
      body(world, findings[rank]);
      if (options.leave) {
        const Status left = world.leave(std::chrono::seconds(20));
        if (!left.ok()) findings[rank].add("World::leave: " + left.to_string());
      }
      finish.mark(rank);
    });
  }
  finish.wait_or_abort(options.watchdog);
  for (std::thread& thread : threads) thread.join();
  for (std::size_t rank = 0; rank < count; ++rank) {
    for (const std::string& text : findings[rank].texts()) {
      result.failures.push_back("rank " + std::to_string(rank) + ": " + text);
    }
    result.notes[rank] = findings[rank].note();
  }
  return result;
}

std::string RunResult::text() const {
  std::string all;
  for (const std::string& failure : failures) all += failure + "\n";
  return all;
}

}  // namespace sluice::support
