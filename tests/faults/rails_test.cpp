// SPDX-License-Identifier: MIT
//
// Ranks on two nodes, as threads, over two rails of which one goes dead: nothing is refused, no connection ends, and what comes
// by the other rail goes on to come. Nobody waits for the deadline, and what comes is right.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "faults/echo_round.hpp"
#include "support/run_ranks.hpp"
#include "support/sanitizers.hpp"
#include "support/wired_network.hpp"

namespace sluice::faults {
namespace {

constexpr int kRanks = 4;
constexpr int kNodeSize = 2;
constexpr int kGoodRounds = 5;
constexpr int kRounds = 20;

/// Of chunks that travel together many are lost at once, and then no more can go (transport/bundling.hpp).
class DeadRail : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr const char* kSettings[][2] = {{"SLUICE_TEST_NODE_SIZE", "2"},
                                                 {"SLUICE_TEST_WIRE", "dying"},
                                                 {"SLUICE_NETWORK", "tcp,net"},
                                                 {"SLUICE_NETWORK_ADDRESS", "127.0.0.1"},
                                                 {"SLUICE_NETWORK_RAILS", "2"}};

  void SetUp() override {
    if (testing::kThreadSanitizer) {
      GTEST_SKIP() << "the thread sanitizer sees races in libfabric, which is not instrumented";
    }
    for (const auto& [name, value] : kSettings) ::setenv(name, value, 1);
    ::setenv("SLUICE_NETWORK_BUNDLE", GetParam(), 1);
  }
  void TearDown() override {
    support::second_rail_is_dead() = false;
    for (const auto& [name, value] : kSettings) ::unsetenv(name);
    ::unsetenv("SLUICE_NETWORK_BUNDLE");
  }
};

TEST_P(DeadRail, IsNoticedWhileTheOtherLives) {
  std::atomic<int> ready{0};
  const auto body = [&](World& world, support::Findings& findings) {
    auto made = Communicator::create(world, EchoRound::shape(kRanks), EchoRound::options());
    if (!made.ok()) return findings.add("create: " + made.status().to_string());
    EchoRound rounds(*made, findings);
    for (int round = 0; round < kGoodRounds; ++round) {
      if (!rounds.run(round).missing.empty()) findings.add("a rank is missing before the fault");
    }
    if (++ready == kRanks) support::second_rail_is_dead() = true;
    RankSet missing;
    double longest = 0;
    for (int round = kGoodRounds; round < kRounds; ++round) {
      const EchoRound::Outcome seen = rounds.run(round);
      longest = std::max({longest, seen.dispatch_seconds, seen.combine_seconds});
      for (int peer = 0; peer < kRanks; ++peer) {
        if (seen.missing.contains(peer)) missing.insert(peer);
      }
    }
    for (int peer = 0; peer < kRanks; ++peer) {
      const bool far = peer / kNodeSize != world.rank() / kNodeSize;
      if (far != missing.contains(peer)) {
        findings.add(fmt::format("rank {} is {}missing", peer, far ? "not " : ""));
      }
    }
    if (longest > 10) findings.add("a call needed its deadline");
    fmt::print("rank {}: the longest half {:.2f} s\n", world.rank(), longest);
    // Whose communicator is closed would not answer.
    ++ready;
    while (ready < 2 * kRanks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  support::RunOptions options;
  options.leave = false;
  const support::RunResult result = support::run_as_threads(kRanks, body, options);
  EXPECT_TRUE(result.failures.empty()) << result.text();
}

INSTANTIATE_TEST_SUITE_P(Faults, DeadRail, ::testing::Values("0", "16000"),
                         [](const auto& test) { return std::string("Bundle") + test.param; });

}  // namespace
}  // namespace sluice::faults
