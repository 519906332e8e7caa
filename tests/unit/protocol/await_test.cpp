// SPDX-License-Identifier: MIT
//
// await with a waiter whose time and peers are a list of events.
#include "protocol/await.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace sluice::protocol {
namespace {

constexpr int kRanks = 4;

RankSet set_of(std::initializer_list<int> ranks) {
  RankSet set;
  for (const int rank : ranks) set.insert(rank);
  return set;
}

/// Time is the number of pauses. Events happen at a pause, or just after a question about a peer.
class FakeWaiter {
 public:
  std::map<int, std::function<void()>> at_pause;  // By number of pauses so far, from 1.
  std::function<void(int)> after_gone;            // Called with the peer just asked about.
  int deadline = 1000000;                         // In pauses.
  RankSet gone_now;
  std::vector<int> arrivals, given_up;
  int pauses = 0;
  int prepared = 0;

  void prepare() { ++prepared; }
  bool overdue(int /*peer*/) const { return pauses >= deadline; }
  bool gone(int peer) {
    const bool answer = gone_now.contains(peer);
    if (after_gone) after_gone(peer);
    return answer;
  }
  void pause() {
    // prepare() must have come since the last pause, or a ring in between would be slept through.
    EXPECT_EQ(prepared, pauses + 1);
    ++pauses;
    ASSERT_LT(pauses, 1000) << "await does not end";
    if (const auto event = at_pause.find(pauses); event != at_pause.end()) event->second();
  }
  void arrived(int peer) { arrivals.push_back(peer); }
  void gave_up(int peer) { given_up.push_back(peer); }
};

class Await : public ::testing::Test {
 protected:
  RankSet await_all() { return await_these(set_of({0, 1, 2, 3})); }
  RankSet await_these(const RankSet& awaited) {
    return await(waiter, suspects, awaited, kRanks, [this](int peer) {
      asked.insert(peer);
      return ready.contains(peer);
    });
  }

  FakeWaiter waiter;
  Suspects suspects;
  RankSet ready;
  RankSet asked;
};

TEST_F(Await, NothingToWaitFor) {
  ready = set_of({0, 1, 2, 3});
  EXPECT_TRUE(await_all().empty());
  EXPECT_EQ(waiter.pauses, 0);
  EXPECT_EQ(waiter.prepared, 0);
  EXPECT_TRUE(suspects.set().empty());
}

TEST_F(Await, PeersArriveOneByOne) {
  ready = set_of({0});
  waiter.at_pause[2] = [this] { ready.insert(3); };
  waiter.at_pause[5] = [this] { ready.insert(1); };
  waiter.at_pause[6] = [this] { ready.insert(2); };
  EXPECT_TRUE(await_all().empty());
  EXPECT_EQ(waiter.arrivals, (std::vector<int>{3, 1, 2}));
  EXPECT_EQ(waiter.pauses, 6);
  EXPECT_TRUE(suspects.set().empty());
}

TEST_F(Await, OnlyThoseAwaitedAreAsked) {
  ready = set_of({2});
  EXPECT_TRUE(await_these(set_of({2})).empty());
  EXPECT_EQ(asked, set_of({2}));
}

TEST_F(Await, DeathIsSeenLongBeforeTheDeadline) {
  ready = set_of({0, 1, 3});
  waiter.at_pause[3] = [this] { waiter.gone_now.insert(2); };
  EXPECT_EQ(await_all(), set_of({2}));
  EXPECT_EQ(waiter.pauses, 3);
  EXPECT_EQ(waiter.given_up, std::vector<int>{2});
  EXPECT_EQ(suspects.set(), set_of({2}));
}

TEST_F(Await, DeathJustAfterTheSignalIsNoLoss) {
  ready = set_of({0, 1, 3});
  // The peer signals and ends between two looks: both are there when it is asked about.
  waiter.at_pause[3] = [this] {
    ready.insert(2);
    waiter.gone_now.insert(2);
  };
  EXPECT_TRUE(await_all().empty());
  EXPECT_EQ(waiter.arrivals, std::vector<int>{2});
  EXPECT_TRUE(suspects.set().empty());
}

// The signal comes after the look at the condition and before the end is looked at: a waiter that
// looked in the other order would lose it.
TEST_F(Await, TheConditionIsLookedAtAfterTheEnd) {
  ready = set_of({0, 1, 3});
  waiter.gone_now = set_of({2});
  waiter.after_gone = [this](int peer) { ready.insert(peer); };
  EXPECT_TRUE(await_all().empty());
  EXPECT_TRUE(suspects.set().empty());
}

TEST_F(Await, TheDeadlineEndsItForAllThatAreNotThere) {
  ready = set_of({1});
  waiter.deadline = 7;
  waiter.at_pause[4] = [this] { ready.insert(0); };
  EXPECT_EQ(await_all(), set_of({2, 3}));
  EXPECT_EQ(waiter.pauses, 7);
  EXPECT_EQ(waiter.given_up, (std::vector<int>{2, 3}));
  EXPECT_EQ(suspects.set(), set_of({2, 3}));
}

TEST_F(Await, WhatComesAtTheDeadlineCounts) {
  ready = set_of({0, 1, 3});
  waiter.deadline = 5;
  waiter.at_pause[5] = [this] { ready.insert(2); };
  EXPECT_TRUE(await_all().empty());
}

TEST_F(Await, SuspicionIsFinal) {
  ready = set_of({0, 1, 3});
  waiter.gone_now = set_of({2});
  EXPECT_EQ(await_all(), set_of({2}));
  suspects.operation_ended();

  // It is back, and has signalled: nobody looks.
  waiter.gone_now = {};
  ready = set_of({0, 1, 2, 3});
  asked = {};
  const int pauses = waiter.pauses;
  EXPECT_EQ(await_all(), set_of({2}));
  EXPECT_FALSE(asked.contains(2));
  EXPECT_EQ(waiter.pauses, pauses) << "nobody waits for it";
  EXPECT_EQ(waiter.given_up.size(), 1U) << "and it is given up once";
}

TEST_F(Await, AllAreSuspects) {
  for (int rank = 0; rank < kRanks; ++rank) suspects.suspect(rank);
  EXPECT_EQ(await_all(), set_of({0, 1, 2, 3}));
  EXPECT_EQ(waiter.pauses, 0);
}

}  // namespace
}  // namespace sluice::protocol
