// SPDX-License-Identifier: MIT
//
// Ranks on two nodes, as threads, of which one falls silent for longer than the patience, and comes back;
// or whose network loses what it carries. Nobody takes rows of one operation for those of another, and
// nobody needs the deadline.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "faults/echo_round.hpp"
#include "support/random.hpp"
#include "support/run_ranks.hpp"
#include "support/scripted_network.hpp"

namespace sluice::faults {
namespace {

using Moment = EchoRound::Moment;

constexpr int kRanks = 4;
constexpr int kRounds = 16;
constexpr int kFaultyRound = 5;
// So many rounds later all memory that was in use then has been used again.
constexpr int kRoundsApart = 7;

class OfTwoNodes : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    ::setenv("SLUICE_TEST_NODE_SIZE", "2", 1);
    ::setenv("SLUICE_NETWORK", "memory", 1);
    ::setenv("SLUICE_NETWORK_PATIENCE_MS", "300", 1);
  }
  void TearDown() override {
    for (const char* name :
         {"SLUICE_TEST_NODE_SIZE", "SLUICE_NETWORK", "SLUICE_NETWORK_PATIENCE_MS"})
      ::unsetenv(name);
  }

  bool others_are_at(int round) const {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank != GetParam() && round_of_[static_cast<std::size_t>(rank)] < round) return false;
    }
    return true;
  }
  bool others_are_ahead() const { return others_are_at(kFaultyRound + kRoundsApart); }
  bool under_way() const { return struck_; }
  std::chrono::milliseconds since_struck() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now().time_since_epoch() - std::chrono::nanoseconds(struck_ns_));
  }
  bool near_the_fault(int rank) const {
    return round_of_[static_cast<std::size_t>(rank)] >= kFaultyRound;
  }

  /// Of the victim: when its fault begins.
  Moment when_ = Moment::idle;
  /// Instead of its fault's round, the victim leaves, and its communicator stays open.
  bool leaves_ = false;
  /// Ranks that must have named it by the end, and that it must have named.
  RankSet witnesses_;
  RankSet named_by_it_;
  /// Ranks none of which may have named another one of them.
  std::vector<RankSet> keepers_;
  std::optional<Reduce> reduce_;
  /// After every round.
  std::chrono::milliseconds rest_{0};

  /// The victim loses nobody but this one, nor this one anybody else.
  int lose_one_that_it_does_not_serve();

  void run() {
    const int victim = GetParam();
    const auto body = [&](World& world, support::Findings& findings) {
      const int rank = world.rank();
      CommunicatorOptions options = EchoRound::options();
      options.reduce = reduce_;
      auto made = Communicator::create(world, EchoRound::shape(kRanks), options);
      if (!made.ok()) return findings.add("create: " + made.status().to_string());
      EchoRound rounds(*made, findings);
      RankSet missing;
      for (int round = 0; round < kRounds; ++round) {
        round_of_[static_cast<std::size_t>(rank)] = round;
        if (leaves_ && rank == victim && round == kFaultyRound) {
          const Status left = world.leave(std::chrono::seconds(10));
          if (!left.ok()) findings.add("leave: " + left.to_string());
          struck_ = true;
          break;
        }
        const EchoRound::Outcome seen = rounds.run(round, [&](Moment moment) {
          if (rank != victim || round != kFaultyRound || moment != when_) return;
          struck_ns_ = std::chrono::steady_clock::now().time_since_epoch().count();
          struck_ = true;
        });
        for (int peer = 0; peer < kRanks; ++peer) {
          if (seen.missing.contains(peer)) missing.insert(peer);
        }
        for (const double seconds : {seen.dispatch_seconds, seen.combine_seconds}) {
          if (seconds > 10) findings.add(fmt::format("round {} needed its deadline", round));
        }
        std::this_thread::sleep_for(rest_);
      }
      // Networks and threads of communicators that are closed would end with what is on its way.
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      round_of_[static_cast<std::size_t>(rank)] = kRounds;
      const auto victim_is_done = [&] {
        return round_of_[static_cast<std::size_t>(victim)] >= kRounds;
      };
      while (!(victim_is_done() && (!leaves_ || others_are_at(kRounds))) &&
             std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (witnesses_.contains(rank) && !missing.contains(victim))
        findings.add("no report names the victim");
      for (int peer = 0; peer < kRanks; ++peer) {
        if (rank == victim && named_by_it_.contains(peer) && !missing.contains(peer))
          findings.add(fmt::format("no report of the victim names rank {}", peer));
        const bool kept = std::any_of(keepers_.begin(), keepers_.end(), [&](const RankSet& ranks) {
          return ranks.contains(rank) && ranks.contains(peer);
        });
        if (kept && missing.contains(peer))
          findings.add(fmt::format("a report names rank {}", peer));
      }
    };
    support::RunOptions options;
    options.leave = false;
    const support::RunResult result = support::run_as_threads(kRanks, body, options);
    EXPECT_TRUE(result.failures.empty()) << result.text();
  }

 private:
  std::array<std::atomic<int>, kRanks> round_of_{};
  std::atomic<std::int64_t> struck_ns_{0};
  std::atomic<bool> struck_{false};
};

RankSet of_other_node(int rank) {
  RankSet others;
  for (int other = 0; other < kRanks; ++other) {
    if (other / 2 != rank / 2) others.insert(other);
  }
  return others;
}

RankSet all_but(int rank) {
  RankSet all;
  for (int other = 0; other < kRanks; ++other) {
    if (other != rank) all.insert(other);
  }
  return all;
}

int OfTwoNodes::lose_one_that_it_does_not_serve() {
  const int victim = GetParam();
  const int other = (victim ^ 2) ^ 1;
  reduce_ = Reduce::rank;
  witnesses_.insert(other);
  named_by_it_.insert(other);
  keepers_ = {all_but(victim), all_but(other)};
  return other;
}

// Its calls wait meanwhile. When it goes on, what lies there for it was sent long ago, from memory that
// has been used again.
TEST_P(OfTwoNodes, ThreadStandsStill) {
  witnesses_ = all_but(GetParam());
  const support::ScriptedNetwork network({.stalls = [this](int rank) {
    return rank == GetParam() && under_way() && !others_are_ahead();
  }});
  run();
}

TEST_P(OfTwoNodes, ThreadStandsStillWithItsRowsSent) {
  witnesses_ = all_but(GetParam());
  when_ = Moment::sent;
  const support::ScriptedNetwork network({.stalls = [this](int rank) {
    return rank == GetParam() && under_way() && !others_are_ahead();
  }});
  run();
}

// As if one of several rails carried nothing any more: what still comes by the others keeps nobody alive.
TEST_P(OfTwoNodes, APartOfWhatItSendsIsLost) {
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank / 2 != GetParam() / 2) witnesses_.insert(rank);
  }
  std::array<std::atomic<std::uint64_t>, kRanks> sent{};
  const support::ScriptedNetwork network({.swallows = [&](int from, int to) {
    if (from != GetParam() || !under_way()) return false;
    const auto peer = static_cast<std::uint64_t>(to);
    return support::Random::of(peer, sent[peer]++).chance(50);
  }});
  run();
}

// Its whole machine, for two patiences, and its neighbour a little longer: other nodes give both up,
// but they keep each other.
TEST_P(OfTwoNodes, AllThreadsOfANodeStandStill) {
  const int neighbour = GetParam() ^ 1;
  ::setenv("SLUICE_NETWORK_PATIENCE_MS", "1000", 1);
  RankSet node;
  for (const int kept : {GetParam(), neighbour}) node.insert(kept);
  keepers_.push_back(node);
  witnesses_ = of_other_node(GetParam());
  const support::ScriptedNetwork network({.stalls = [=, this](int rank) {
    if (rank / 2 != GetParam() / 2 || !under_way()) return false;
    return since_struck() < std::chrono::milliseconds(rank == neighbour ? 2300 : 2000);
  }});
  run();
}

// No memory is left for what it does. Its calls go on, and wait for nobody; its neighbour may be done with it before it
// has been silent for long.
TEST_P(OfTwoNodes, ItsProgressThreadEnds) {
  const int victim = GetParam();
  witnesses_ = of_other_node(victim);
  const support::ScriptedNetwork network(
      {.exhausts = [=, this](int rank) { return rank == victim && under_way(); }});
  run();
}

class OfTwoNodesFromTheStart : public OfTwoNodes {};

// Before anybody has heard of it: the others wait as long as ranks may take to begin.
TEST_P(OfTwoNodesFromTheStart, ItsProgressThreadEnds) {
  const int victim = GetParam();
  witnesses_ = of_other_node(victim);
  const support::ScriptedNetwork network({.exhausts = [=](int rank) { return rank == victim; }});
  run();
}

// Nobody gets a communicator, and all learn why.
TEST_P(OfTwoNodes, AProgressThreadCannotBeHad) {
  const int victim = GetParam();
  const support::ScriptedNetwork network(
      {.has_no_thread = [=](int rank) { return rank == victim; }});
  const support::RunResult result =
      support::run_as_threads(kRanks, [&](World& world, support::Findings& findings) {
        const auto made =
            Communicator::create(world, EchoRound::shape(kRanks), EchoRound::options());
        const std::string expected = fmt::format("rank {}: cannot start a progress thread", victim);
        if (made.status().code() != StatusCode::io_error ||
            made.status().message().find(expected) == std::string::npos) {
          findings.add("create: " + made.status().to_string());
        }
      });
  EXPECT_TRUE(result.failures.empty()) << result.text();
}

// It sends no more beats, but its progress thread goes on to answer those of others.
TEST_P(OfTwoNodes, LeavesWithItsCommunicatorOpen) {
  leaves_ = true;
  witnesses_ = all_but(GetParam());
  const support::ScriptedNetwork network({});
  run();
}

// Nor does it serve anybody any more.
TEST_P(OfTwoNodes, LeavesAndItsThreadStandsStill) {
  leaves_ = true;
  witnesses_ = all_but(GetParam());
  const support::ScriptedNetwork network({.stalls = [this](int rank) {
    return rank == GetParam() && under_way() && !others_are_at(kRounds);
  }});
  run();
}

// It hears the others; they do not hear it.
TEST_P(OfTwoNodes, NothingComesOfIt) {
  const support::ScriptedNetwork network(
      {.swallows = [this](int from, int /*to*/) { return from == GetParam() && under_way(); }});
  run();
}

TEST_P(OfTwoNodes, NothingComesToIt) {
  const support::ScriptedNetwork network(
      {.swallows = [this](int /*from*/, int to) { return to == GetParam() && under_way(); }});
  run();
}

// For a while: then it is too late.
TEST_P(OfTwoNodes, NothingComesOfItForAWhile) {
  const support::ScriptedNetwork network({.swallows = [this](int from, int /*to*/) {
    return from == GetParam() && under_way() && !others_are_ahead();
  }});
  run();
}

// A node of its own, so that the others go on meanwhile.
class OfThreeAndOne : public OfTwoNodes {};

// Its network is slow, and nothing comes of it any more: rows that were sent to it before it was given up
// are read, from memory that has been used again, and arrive before it gives the others up.
TEST_P(OfThreeAndOne, RowsAreLate) {
  ::setenv("SLUICE_TEST_NODE_SIZE", "3", 1);
  ::setenv("SLUICE_NETWORK_PATIENCE_MS", "600", 1);
  using std::chrono::milliseconds;
  const support::ScriptedNetwork network(
      {.swallows = [this](int from, int /*to*/) { return from == GetParam() && under_way(); },
       .delays =
           [this](int from, int to, std::uint32_t bytes) {
             if (to != GetParam()) return milliseconds(0);
             if (bytes == 0) return milliseconds(300);  // signs
             const bool rows = bytes >= EchoRound::kHidden * sizeof(float);
             return milliseconds(rows && near_the_fault(from) ? 800 : 0);
           }});
  run();
}

// One endpoint says so of another; both live.
TEST_P(OfTwoNodes, OnePathIsLost) {
  const support::ScriptedNetwork network({.loses = [this](int rank) {
    return under_way() && rank == (GetParam() + 2) % kRanks ? GetParam() : -1;
  }});
  run();
}

// To one that it does not serve, nor is served by: no beat takes that path. What it has put there is never out, and nobody
// learns so from anybody else.
TEST_P(OfTwoNodes, OnePathCarriesNothing) {
  const int from = GetParam();
  const int to = lose_one_that_it_does_not_serve();
  const support::ScriptedNetwork network(
      {.delays = [=, this](int sender, int receiver, std::uint32_t) {
        return std::chrono::hours(sender == from && receiver == to && under_way() ? 1 : 0);
      }});
  run();
}

// The endpoint says so. Who serves that one has time to learn it, and knows better.
TEST_P(OfTwoNodes, OnePathIsLostToOneThatItDoesNotServe) {
  rest_ = std::chrono::milliseconds(20);
  const int from = GetParam();
  const int to = lose_one_that_it_does_not_serve();
  const support::ScriptedNetwork network(
      {.loses = [=, this](int rank) { return rank == from && under_way() ? to : -1; }});
  run();
}

// Also answers are never out. Who decides when such memory is used again hears those well to whom they were to go.
TEST_P(OfTwoNodes, NothingOfItIsEverOut) {
  const int victim = GetParam();
  reduce_ = Reduce::rank;
  witnesses_ = of_other_node(victim);
  const support::ScriptedNetwork network({.delays = [=, this](int from, int to, std::uint32_t) {
    const bool out = from == victim && to / 2 != victim / 2;
    return std::chrono::hours(out && under_way() ? 1 : 0);
  }});
  run();
}

/// What befalls the network for a while, drawn: lines that are cut or slow, threads that stand still.
class Storm {
 public:
  explicit Storm(std::uint64_t seed) {
    support::Random random = support::Random::of(seed, 17);
    const std::int64_t count = 1 + random.below(4);
    for (std::int64_t i = 0; i < count; ++i) {
      Trouble trouble;
      trouble.kind = static_cast<Kind>(random.below(4));
      trouble.from = static_cast<int>(random.below(kRanks));
      trouble.to = static_cast<int>(random.below(kRanks));
      trouble.begin = milliseconds(100 + random.below(300));
      // Also for less than the patience, and for good.
      trouble.end = trouble.begin + milliseconds(random.chance(20) ? 60'000 : random.below(600));
      trouble.delay = milliseconds(random.below(400));
      troubles_.push_back(trouble);
    }
  }

  support::NetworkScript script() const {
    support::NetworkScript script;
    // What a cut line has not brought comes when it is mended.
    script.swallows = [this](int from, int to) {
      const Trouble* const found = find(Kind::cut, from, to);
      return found != nullptr && for_good(*found);
    };
    script.stalls = [this](int rank) {
      const Trouble* const found = find(Kind::still, rank, -1);
      return found != nullptr && !for_good(*found);
    };
    script.delays = [this](int from, int to, std::uint32_t bytes) {
      if (const Trouble* const cut = find(Kind::cut, from, to); cut != nullptr) {
        return std::chrono::ceil<milliseconds>(start_ + cut->end - Clock::now());
      }
      const Trouble* found = find(Kind::slow, from, to);
      if (found == nullptr && bytes > 0) found = find(Kind::slow_rows, from, to);
      return found == nullptr ? milliseconds(0) : found->delay;
    };
    return script;
  }

 private:
  using milliseconds = std::chrono::milliseconds;
  using Clock = std::chrono::steady_clock;
  enum class Kind { cut, still, slow, slow_rows };
  struct Trouble {
    Kind kind;
    int from;
    int to;
    milliseconds begin;
    milliseconds end;
    milliseconds delay;
  };

  static bool for_good(const Trouble& trouble) {
    return trouble.end - trouble.begin > milliseconds(1000);
  }
  const Trouble* find(Kind kind, int from, int to) const {
    const auto now = Clock::now() - start_;
    for (const Trouble& each : troubles_) {
      if (each.kind == kind && each.from == from && (to < 0 || each.to == to) &&
          now >= each.begin && now < each.end) {
        return &each;
      }
    }
    return nullptr;
  }

  Clock::time_point start_ = Clock::now();
  std::vector<Trouble> troubles_;
};

class Storms : public ::testing::TestWithParam<int> {};

// Whatever is lost: what comes is right, and nobody is stuck. SLUICE_TEST_SEEDS: how many, of each size.
TEST_P(Storms, WhatComesIsRight) {
  ::setenv("SLUICE_TEST_NODE_SIZE", std::to_string(GetParam()).c_str(), 1);
  ::setenv("SLUICE_NETWORK", "memory", 1);
  ::setenv("SLUICE_NETWORK_PATIENCE_MS", "200", 1);
  const char* const text = std::getenv("SLUICE_TEST_SEEDS");
  const std::uint64_t seeds = text == nullptr ? 4 : std::strtoull(text, nullptr, 10);
  for (std::uint64_t seed = 1; seed <= seeds && !HasFailure(); ++seed) {
    const Storm storm(seed);
    const support::ScriptedNetwork network(storm.script());
    const auto body = [&](World& world, support::Findings& findings) {
      CommunicatorOptions options = EchoRound::options();
      options.mode = seed % 2 == 0 ? Mode::throughput : Mode::latency;
      if (seed % 3 == 0) options.reduce = Reduce::rank;
      auto made = Communicator::create(world, EchoRound::shape(kRanks), options);
      if (!made.ok()) return findings.add("create: " + made.status().to_string());
      EchoRound rounds(*made, findings);
      for (int round = 0; round < 60; ++round) {
        const EchoRound::Outcome seen = rounds.run(round);
        for (const double seconds : {seen.dispatch_seconds, seen.combine_seconds}) {
          if (seconds > 10) findings.add(fmt::format("round {} needed its deadline", round));
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(8));
      }
    };
    support::RunOptions options;
    options.leave = false;
    const support::RunResult result = support::run_as_threads(kRanks, body, options);
    EXPECT_TRUE(result.failures.empty()) << "seed " << seed << "\n" << result.text();
  }
  ::unsetenv("SLUICE_TEST_NODE_SIZE");
}

INSTANTIATE_TEST_SUITE_P(Faults, Storms, ::testing::Values(1, 2, 3));
INSTANTIATE_TEST_SUITE_P(Faults, OfTwoNodes, ::testing::Range(0, kRanks));
INSTANTIATE_TEST_SUITE_P(Faults, OfTwoNodesFromTheStart, ::testing::Values(2));
INSTANTIATE_TEST_SUITE_P(Faults, OfThreeAndOne, ::testing::Values(3));

}  // namespace
}  // namespace sluice::faults
