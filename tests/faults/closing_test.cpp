// SPDX-License-Identifier: MIT
//
// The end of communicators on two nodes: their relays go when nobody needs them any more, and do not wait for
// words that never come.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "faults/echo_round.hpp"
#include "support/run_ranks.hpp"
#include "transport/network.hpp"

namespace sluice::faults {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kRanks = 4;
// A relay that misses a goodbye lingers for 10 s where the patience is that long.
constexpr seconds kPatience{60};
constexpr seconds kSoon{5};

// Held by every relay until it goes.
std::weak_ptr<transport::Network> last_network;

// It tells every second put to come later, so goodbyes wait for others when the relays are done.
std::shared_ptr<transport::Network> refusing(std::shared_ptr<transport::Network> /*network*/) {
  transport::Adversity adversity;
  adversity.refusal = 512;
  auto network = transport::bundling_network(transport::memory_network(adversity), {});
  network->relay.patience = kPatience;
  last_network = network;
  return network;
}

class Closing : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("SLUICE_TEST_NODE_SIZE", "2", 1);
    ::setenv("SLUICE_NETWORK", "memory", 1);
    transport::network_hook = &refusing;
  }
  void TearDown() override {
    transport::network_hook = nullptr;
    for (const char* name : {"SLUICE_TEST_NODE_SIZE", "SLUICE_NETWORK"}) ::unsetenv(name);
  }
};

TEST_F(Closing, GoodbyesComeThroughANetworkThatRefuses) {
  const auto body = [](World& world, support::Findings& findings) {
    auto made = Communicator::create(world, EchoRound::shape(kRanks), EchoRound::options());
    if (!made.ok()) return findings.add("create: " + made.status().to_string());
    EchoRound(*made, findings).run(0);
  };
  for (int time = 0; time < 5; ++time) {
    const support::RunResult result = support::run_as_threads(kRanks, body, {});
    ASSERT_TRUE(result.failures.empty()) << result.text();
    const auto end = steady_clock::now() + kSoon;
    while (!last_network.expired() && steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(last_network.expired()) << "a relay lingers, time " << time;
  }
}

}  // namespace
}  // namespace sluice::faults
