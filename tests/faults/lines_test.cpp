// SPDX-License-Identifier: MIT
//
// Connections between processes of two nodes that show when one ends (bootstrap/lifelines.hpp).
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "faults/echo_round.hpp"
#include "support/run_ranks.hpp"

namespace sluice::faults {
namespace {

constexpr int kRanks = 4;
constexpr int kVictim = 3;
using Moment = EchoRound::Moment;

class Lines : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("SLUICE_NETWORK", "tcp,net", 1); }
  void TearDown() override {
    ::unsetenv("SLUICE_NETWORK_PATIENCE_MS");
    ::unsetenv("SLUICE_TEST_NODE_SIZE");
  }
};

/// Shuts this process's lines down, as a box between the nodes might: connections over which next to nothing was said.
int shut_lines() {
  int count = 0;
  for (int number = 3; number < 1024; ++number) {
    tcp_info info{};
    socklen_t length = sizeof(info);
    if (::getsockopt(number, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) continue;
    constexpr int kEstablished = 1;
    if (info.tcpi_state != kEstablished || info.tcpi_bytes_acked > 64 ||
        info.tcpi_bytes_received > 64) {
      continue;
    }
    if (::shutdown(number, SHUT_RDWR) == 0) ++count;
  }
  return count;
}

TEST_F(Lines, WhoseLineBreaksAndWhoLivesIsNotGivenUp) {
  ::setenv("SLUICE_TEST_NODE_SIZE", "2", 1);
  ::setenv("SLUICE_NETWORK_PATIENCE_MS", "4000", 1);
  const auto body = [&](World& world, support::Findings& findings) {
    auto made = Communicator::create(world, EchoRound::shape(kRanks), EchoRound::options());
    if (!made.ok()) return findings.add("create: " + made.status().to_string());
    EchoRound rounds(*made, findings);
    // For more than a quarter of the patience, which would be enough for one that is silent.
    for (int round = 0; round < 20; ++round) {
      if (!rounds.run(round).missing.empty()) {
        findings.add(fmt::format("round {}: a rank is missing", round));
      }
      if (round == 2 && world.rank() == kVictim) {
        // With one rank on the other node.
        if (const int lines = shut_lines(); lines != 1) {
          findings.add(fmt::format("{} lines, expected 1", lines));
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  };
  const support::RunResult result = support::run_as_processes(kRanks, body);
  EXPECT_TRUE(result.failures.empty()) << result.text();
}

TEST_F(Lines, AKilledRankThatWasAloneOnItsNodeIsKnownLongBeforeItsSilenceIsOver) {
  ::setenv("SLUICE_TEST_NODE_SIZE", "3", 1);
  ::setenv("SLUICE_NETWORK_PATIENCE_MS", "12000", 1);  // A quarter is enough.
  constexpr int kFaulty = 2;
  constexpr double kLongest = 9;
  const auto body = [&](World& world, support::Findings& findings) {
    auto made = Communicator::create(world, EchoRound::shape(kRanks), EchoRound::options());
    if (!made.ok()) return findings.add("create: " + made.status().to_string());
    EchoRound rounds(*made, findings);
    for (int round = 0; round <= kFaulty; ++round) {
      const auto seen = rounds.run(round, [&](Moment when) {
        if (round == kFaulty && when == Moment::idle && world.rank() == kVictim) {
          // What it has sent in the round before does not die with it.
          std::this_thread::sleep_for(std::chrono::milliseconds(500));
          ::kill(::getpid(), SIGKILL);
        }
      });
      const double seconds = std::max(seen.dispatch_seconds, seen.combine_seconds);
      if (seconds > kLongest) {
        findings.add(fmt::format("a call took {:.3f} s, expected {} at most", seconds, kLongest));
      }
      if (seen.missing.contains(kVictim) != (round == kFaulty)) {
        findings.add(fmt::format("round {}: the victim is {} the report", round,
                                 round == kFaulty ? "not in" : "in"));
      }
    }
  };
  support::RunOptions options;
  options.leave = false;
  for (const std::string& failure : support::run_as_processes(kRanks, body, options).failures) {
    const bool meant =
        failure.starts_with(fmt::format("rank {}: ended by signal {}", kVictim, SIGKILL));
    if (!meant) ADD_FAILURE() << failure;
  }
}

}  // namespace
}  // namespace sluice::faults
