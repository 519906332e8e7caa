// SPDX-License-Identifier: MIT
//
// Processes on two nodes, of which one is killed or frozen: every call of the others returns, soon they
// all know of it, and what they get is right or reported as lost. Its neighbours may lose more than the
// victim: what it passed on, too.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "faults/echo_round.hpp"
#include "support/random.hpp"
#include "support/run_ranks.hpp"

namespace sluice::faults {
namespace {

constexpr int kRanks = 4;
constexpr int kRounds = 14;
constexpr int kFaultyRound = 5;
constexpr std::chrono::milliseconds kSlow{300};

using Moment = EchoRound::Moment;
struct Fault {
  const char* name;
  int signal;
  Moment when;
  int victim;
  bool resumes = false;  // After 2.5 s, which the others spend on slow rounds.
  int after_us = 0;      // So long after that: wherever it is then.
};
void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.name;
}

/// One rank's rounds.
class Rounds {
 public:
  Rounds(World& world, Communicator& communicator, const Fault& fault, support::Findings& findings)
      : world_(world), fault_(fault), findings_(findings), rounds_(communicator, findings) {}

  void run() {
    for (int round = 0; round < kRounds; ++round) {
      const bool struck = fault_.after_us != 0 && round > kFaultyRound;
      while (struck && world_.rank() == fault_.victim) ::pause();  // However late it is.
      const auto seen = rounds_.run(round, [&](Moment when) { strike(round, when); });
      // Of one that was away only the rows matter.
      if (world_.rank() != fault_.victim) check(round, seen);
      if (fault_.resumes && round > kFaultyRound) std::this_thread::sleep_for(kSlow);
    }
    if (world_.rank() == fault_.victim) return;
    if (!missing_.contains(fault_.victim)) findings_.add("no report names the victim");
  }

 private:
  void strike(int round, Moment when) const {
    if (round == kFaultyRound && world_.rank() == fault_.victim && fault_.when == when) {
      if (fault_.resumes) {
        const std::string later = fmt::format("(sleep 2.5; kill -CONT {}) &", ::getpid());
        if (std::system(later.c_str()) != 0) findings_.add("cannot start what resumes it");
      }
      if (fault_.after_us == 0) {
        ::kill(::getpid(), fault_.signal);
        return;
      }
      std::thread([fault = fault_] {
        std::this_thread::sleep_for(std::chrono::microseconds(fault.after_us));
        ::kill(::getpid(), fault.signal);
      }).detach();
    }
  }

  void check(int round, const EchoRound::Outcome& seen) {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (seen.missing.contains(rank)) missing_.insert(rank);
    }
    // What a rank has sent in its last round but one may die with it on the way.
    if (round < kFaultyRound - 1 && !seen.missing.empty()) {
      findings_.add(fmt::format("round {}: a rank is missing before the fault", round));
    }
    // The deadline is not needed; and when all know, nobody waits any more, but in the last round for
    // processes that have ended.
    const bool settled = round >= kRounds - 4 && round < kRounds - 1;
    const double limit = settled ? 0.9 : 5.0;
    for (const double seconds : {seen.dispatch_seconds, seen.combine_seconds}) {
      if (round >= kFaultyRound && seconds > limit) {
        findings_.add(fmt::format("round {}: a call took {:.3f} s", round, seconds));
      }
    }
  }

  World& world_;
  const Fault& fault_;
  support::Findings& findings_;
  EchoRound rounds_;
  RankSet missing_;
};

class OnTwoNodes : public ::testing::TestWithParam<Fault> {
 protected:
  void SetUp() override {
    ::setenv("SLUICE_TEST_NODE_SIZE", "2", 1);
    ::setenv("SLUICE_NETWORK", "tcp,net", 1);
  }
  void TearDown() override { ::unsetenv("SLUICE_TEST_NODE_SIZE"); }
};

void expect_that_others_go_on(const Fault& fault) {
  const auto body = [&](World& world, support::Findings& findings) {
    auto made = Communicator::create(world, EchoRound::shape(kRanks), EchoRound::options());
    if (!made.ok()) return findings.add("create: " + made.status().to_string());
    auto processes = world.all_gather(std::to_string(::getpid()));
    if (!processes.ok()) return findings.add("all_gather: " + processes.status().to_string());
    const int victim = std::atoi((*processes)[static_cast<std::size_t>(fault.victim)].c_str());
    Rounds(world, *made, fault, findings).run();
    // A frozen process would keep the test waiting.
    if (!fault.resumes && world.rank() == (fault.victim + 1) % kRanks) ::kill(victim, SIGKILL);
  };
  support::RunOptions options;
  options.watchdog = std::chrono::seconds(60);
  options.leave = false;
  options.waits_at_end = true;
  const support::RunResult result = support::run_as_processes(kRanks, body, options);
  for (const std::string& failure : result.failures) {
    const bool meant =
        failure.starts_with(fmt::format("rank {}: ended by signal {}", fault.victim, SIGKILL));
    if (!meant) ADD_FAILURE() << failure;
  }
}

TEST_P(OnTwoNodes, OthersGoOn) {
  expect_that_others_go_on(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Faults, OnTwoNodes,
    ::testing::Values(Fault{"KilledIdle", SIGKILL, Moment::idle, 0},
                      Fault{"KilledSent", SIGKILL, Moment::sent, 3},
                      Fault{"KilledBetween", SIGKILL, Moment::between, 1},
                      Fault{"FrozenIdle", SIGSTOP, Moment::idle, 2},
                      Fault{"FrozenSent", SIGSTOP, Moment::sent, 1},
                      Fault{"FrozenBetween", SIGSTOP, Moment::between, 3},
                      Fault{"FrozenForAWhile", SIGSTOP, Moment::sent, 2, true},
                      Fault{"FrozenForAWhileIdle", SIGSTOP, Moment::idle, 0, true}),
    [](const ::testing::TestParamInfo<Fault>& each) { return std::string(each.param.name); });

class OnTwoNodesAtAnyMoment : public OnTwoNodes {};

// Within a half, or on the way to the next one: a round takes some hundred microseconds. SLUICE_TEST_SEEDS: how many moments.
TEST_P(OnTwoNodesAtAnyMoment, OthersGoOn) {
  const char* const text = std::getenv("SLUICE_TEST_SEEDS");
  const int seeds = text != nullptr ? std::atoi(text) : 4;
  for (int seed = 0; seed < seeds && !HasFailure(); ++seed) {
    support::Random random = support::Random::of(static_cast<std::uint64_t>(seed),
                                                 static_cast<std::uint64_t>(GetParam().signal));
    Fault fault = GetParam();
    fault.victim = static_cast<int>(random.below(kRanks));
    fault.after_us = 1 + static_cast<int>(random.below(400));
    SCOPED_TRACE(fmt::format("seed {}: rank {} after {} us", seed, fault.victim, fault.after_us));
    expect_that_others_go_on(fault);
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, OnTwoNodesAtAnyMoment,
                         ::testing::Values(Fault{"Killed", SIGKILL, Moment::idle, 0},
                                           Fault{"Frozen", SIGSTOP, Moment::idle, 0}),
                         [](const ::testing::TestParamInfo<Fault>& each) {
                           return std::string(each.param.name);
                         });

// What was put to a process that has ended is free as soon as other nodes know of its end, which is long
// before it would have been silent for long enough. It is frozen first, so that much is put that does not get there.
TEST(OnTwoNodesPatiently, WhatWasPutToAKilledRankIsFreeWhenItsEndIsKnown) {
  ::setenv("SLUICE_TEST_NODE_SIZE", "2", 1);
  ::setenv("SLUICE_NETWORK", "tcp,net", 1);
  ::setenv("SLUICE_NETWORK_PATIENCE_MS", "8000", 1);  // Deaths are told after a quarter.
  constexpr int kVictim = 1;
  constexpr int kFaulty = 1;
  constexpr int kEnd = 9;  // Long enough for places to be used again.
  constexpr Shape kManyBytes{2 * kRanks, EchoRound::kTopk, 65536, 96};  // More than sockets hold.
  const auto body = [&](World& world, support::Findings& findings) {
    auto made = Communicator::create(world, kManyBytes, EchoRound::options());
    if (!made.ok()) return findings.add("create: " + made.status().to_string());
    EchoRound rounds(*made, findings);
    RankSet missing;
    for (int round = 0; round < kEnd; ++round) {
      const auto strike = [&](Moment when) {
        if (round != kFaulty || when != Moment::between || world.rank() != kVictim) return;
        const std::string later = fmt::format("(sleep 1; kill -KILL {}) &", ::getpid());
        if (std::system(later.c_str()) != 0) findings.add("cannot start what kills it");
        ::kill(::getpid(), SIGSTOP);
      };
      const auto seen = rounds.run(round, strike, round == kFaulty ? 0 : 1);
      if (seen.missing.contains(kVictim)) missing.insert(kVictim);
      // In the last round some have ended.
      for (const double seconds : {seen.dispatch_seconds, seen.combine_seconds}) {
        if (round <= kFaulty || round == kEnd - 1 || seconds < 4.5) continue;
        findings.add(fmt::format("round {}: a call took {:.3f} s", round, seconds));
      }
    }
    if (!missing.contains(kVictim)) findings.add("no report names the victim");
    std::this_thread::sleep_for(
        std::chrono::seconds(1));  // Until the others have ended their last round, too.
  };
  support::RunOptions options;
  options.watchdog = std::chrono::seconds(100);
  options.leave = false;
  for (const std::string& failure : support::run_as_processes(kRanks, body, options).failures) {
    const bool meant =
        failure.starts_with(fmt::format("rank {}: ended by signal {}", kVictim, SIGKILL));
    if (!meant) ADD_FAILURE() << failure;
  }
  ::unsetenv("SLUICE_NETWORK_PATIENCE_MS");
  ::unsetenv("SLUICE_TEST_NODE_SIZE");
}

// More ranks than processors by far: they meet, connect, and everything is right. Two seconds are the aim (which are printed,
// and met where nothing else runs), apart from what each process takes to load libfabric: 0.2 s of sleep, 0.15 s of work.
TEST(ManyRanks, EightNodesOfFourConnectAndAreRightForAHundredRounds) {
  ::setenv("SLUICE_TEST_NODE_SIZE", "4", 1);
  ::setenv("SLUICE_NETWORK", "tcp,net", 1);
  constexpr int kMany = 32;
  // Beside other tests, and with sanitizers.
  constexpr double kLongest = sizeof(SLUICE_SANITIZERS) > 1 ? 40 : 10;
  const auto since = [](std::chrono::steady_clock::time_point then) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
  };
  const auto start = std::chrono::steady_clock::now();
  const auto body = [&](World& world, support::Findings& findings) {
    const double joined = since(start);
    {
      // For which every process loads libfabric.
      const auto first = Communicator::create(world, EchoRound::shape(kMany), EchoRound::options());
      if (!first.ok()) return findings.add("create: " + first.status().to_string());
    }
    const double loaded = since(start);
    if (Status status = world.barrier(); !status.ok()) return findings.add(status.to_string());
    std::this_thread::sleep_for(std::chrono::seconds(2));  // Its progress threads say goodbye.
    const auto again = std::chrono::steady_clock::now();
    auto made = Communicator::create(world, EchoRound::shape(kMany), EchoRound::options());
    if (!made.ok()) return findings.add("create: " + made.status().to_string());
    EchoRound rounds(*made, findings);
    for (int round = 0; round < 100; ++round) {
      if (!rounds.run(round).missing.empty()) {
        findings.add(fmt::format("round {}: a rank is missing", round));
      }
      if (round > 0 || world.rank() != 0) continue;
      const double connected = since(again);
      fmt::print(
          "rank 0: joined after {:.3f} s, first communicator after {:.3f}; another one, and its "
          "first round, in {:.3f}\n",
          joined, loaded, connected);
      if (joined + connected > kLongest) {
        findings.add(fmt::format("{:.3f} s to join and to connect, expected {} at most",
                                 joined + connected, kLongest));
      }
    }
    if (world.rank() == 0) fmt::print("and 99 more rounds: {:.3f} s in all\n", since(again));
    std::fflush(stdout);
  };
  support::RunOptions options;
  options.watchdog = std::chrono::seconds(100);
  for (const std::string& failure : support::run_as_processes(kMany, body, options).failures) {
    ADD_FAILURE() << failure;
  }
  ::unsetenv("SLUICE_TEST_NODE_SIZE");
}

}  // namespace
}  // namespace sluice::faults
