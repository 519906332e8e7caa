// SPDX-License-Identifier: MIT
//
// The end of communicators on two nodes: their relays go when nobody needs them any more, and do not wait for
// words that never come.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "faults/echo_round.hpp"
#include "routing/node_map.hpp"
#include "support/forwarding_endpoint.hpp"
#include "support/run_ranks.hpp"
#include "transport/network.hpp"

namespace sluice::faults {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

// A relay that misses a goodbye lingers for 10 s where the patience is that long.
constexpr seconds kPatience{60};
constexpr seconds kSoon{5};

// Held by every relay until it goes.
std::weak_ptr<transport::Network> last_network;

std::shared_ptr<transport::Network> patient(std::shared_ptr<transport::Network> below) {
  auto network = transport::bundling_network(std::move(below), {});
  network->relay.patience = kPatience;
  last_network = network;
  return network;
}

// It tells every second put to come later, so goodbyes wait for others when the relays are done.
std::shared_ptr<transport::Network> refusing(std::shared_ptr<transport::Network> /*network*/) {
  transport::Adversity adversity;
  adversity.refusal = 512;
  return patient(transport::memory_network(adversity));
}

/// Who has put something to whom. On TCP a connection is made for that.
class Pairs {
 public:
  void add(int from, int to) {
    const std::lock_guard lock(mutex_);
    pairs_.emplace(from, to);
  }
  std::set<std::pair<int, int>> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(pairs_, {});
  }

 private:
  std::mutex mutex_;
  std::set<std::pair<int, int>> pairs_;
} pairs;

class NotingEndpoint final : public support::ForwardingEndpoint {
 public:
  NotingEndpoint(std::unique_ptr<Endpoint> inner, int rank)
      : ForwardingEndpoint(std::move(inner)), rank_(rank) {}
  transport::Posted put(const transport::Chunk& chunk) override {
    pairs.add(rank_, chunk.peer);
    return ForwardingEndpoint::put(chunk);
  }

 private:
  const int rank_;
};

class NotingNetwork final : public transport::Network {
 public:
  Result<std::unique_ptr<transport::Endpoint>> open(int rank, int ranks, std::uint64_t meeting,
                                                    const transport::Purpose& purpose) override {
    auto inner = below_->open(rank, ranks, meeting, purpose);
    if (!inner.ok()) return inner.status();
    return std::unique_ptr<transport::Endpoint>(
        std::make_unique<NotingEndpoint>(std::move(inner).value(), rank));
  }

 private:
  std::shared_ptr<transport::Network> below_ = transport::memory_network({});
};

std::shared_ptr<transport::Network> noting(std::shared_ptr<transport::Network> /*network*/) {
  return patient(std::make_shared<NotingNetwork>());
}

class Closing : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("SLUICE_NETWORK", "memory", 1); }
  void TearDown() override {
    transport::network_hook = nullptr;
    for (const char* name : {"SLUICE_TEST_NODE_SIZE", "SLUICE_NETWORK"}) ::unsetenv(name);
  }

  /// A communicator's life, up to the end of its last relay.
  static void live(int ranks, int node_size, transport::NetworkHook hook) {
    ::setenv("SLUICE_TEST_NODE_SIZE", std::to_string(node_size).c_str(), 1);
    transport::network_hook = hook;
    const auto body = [&](World& world, support::Findings& findings) {
      auto made = Communicator::create(world, EchoRound::shape(ranks), EchoRound::options());
      if (!made.ok()) return findings.add("create: " + made.status().to_string());
      EchoRound(*made, findings).run(0);
    };
    const support::RunResult result = support::run_as_threads(ranks, body, {});
    ASSERT_TRUE(result.failures.empty()) << result.text();
    const auto end = steady_clock::now() + kSoon;
    while (!last_network.expired() && steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(last_network.expired()) << "a relay lingers";
  }
};

TEST_F(Closing, GoodbyesComeThroughANetworkThatRefuses) {
  for (int time = 0; time < 5; ++time) {
    ASSERT_NO_FATAL_FAILURE(live(4, 2, &refusing)) << "time " << time;
  }
}

TEST_F(Closing, GoodbyesGoToRailPeers) {
  for (const auto& [ranks, node_size] : {std::pair{6, 2}, std::pair{6, 3}, std::pair{7, 3}}) {
    ASSERT_NO_FATAL_FAILURE(live(ranks, node_size, &noting)) << ranks << " ranks";
    std::vector<int> node_of;
    for (int rank = 0; rank < ranks; ++rank) node_of.push_back(rank / node_size);
    const routing::NodeMap nodes{node_of};
    for (const auto& [from, to] : pairs.take()) {
      EXPECT_TRUE(nodes.rail_peer(from, nodes.node_of(to)) == to ||
                  nodes.rail_peer(to, nodes.node_of(from)) == from)
          << "rank " << from << " to rank " << to << " of " << ranks;
    }
  }
}

}  // namespace
}  // namespace sluice::faults
