// SPDX-License-Identifier: MIT
#include "bootstrap/served_store.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "bootstrap/thread_group.hpp"
#include "ranks.hpp"

namespace sluice {
namespace {

using base::Deadline;
using bootstrap::ServedStore;
using bootstrap::ThreadGroup;
using bootstrap::WorldStore;
using std::chrono::seconds;

/// Of two ranks, which meet as threads do.
std::vector<std::shared_ptr<WorldStore>> two_stores() {
  auto groups = ThreadGroup::create_all(2);
  std::vector<std::shared_ptr<WorldStore>> stores(2);
  testing::for_each_rank(2, [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    const bootstrap::Gather gather = [&](std::string_view blob) {
      return groups[index]->all_gather(blob, Deadline::after(seconds(60)));
    };
    auto store = ServedStore::open(rank, 2, gather, "127.0.0.1", Deadline::after(seconds(60)));
    ASSERT_TRUE(store.ok()) << store.status().to_string();
    stores[index] = std::move(store).value();
  });
  return stores;
}

// Where nobody serves it, as far as rank 1 sees: rank 0 does not wait for it until its own deadline.
TEST(ServedStore, ThatOneDoesNotReachIsNobodys) {
  auto groups = ThreadGroup::create_all(2);
  testing::for_each_rank(2, [&](int rank) {
    auto& group = *groups[static_cast<std::size_t>(rank)];
    const bootstrap::Gather gather = [&](std::string_view blob) {
      auto all = group.all_gather(blob, Deadline::never());
      if (rank == 1 && all->front().starts_with("at ")) all->front() = "at unix:sluice-nobody";
      return all;
    };
    const auto deadline =
        rank == 0 ? Deadline::never() : Deadline::after(std::chrono::milliseconds(200));
    const Status status = ServedStore::open(rank, 2, gather, "127.0.0.1", deadline).status();
    EXPECT_EQ(status.code(), StatusCode::deadline_exceeded);
    EXPECT_NE(status.message().find("rank 1: nobody serves"), std::string::npos)
        << status.to_string();
  });
}

// What it cannot bring, for want of memory, say, nobody waits for.
TEST(ServedStore, WhoGivesUpIsNotWaitedFor) {
  const auto stores = two_stores();
  ASSERT_TRUE(stores[0] != nullptr && stores[1] != nullptr);
  auto waits = std::async(std::launch::async, [&] {
    return stores[0]->get("what it cannot bring", Deadline::after(seconds(120))).status();
  });
  // Deadlines pass for all, each by itself: that one has tells nobody anything.
  stores[1]->give_up(Status(StatusCode::deadline_exceeded, "too late"));
  EXPECT_TRUE(stores[1]->set("more", "", Deadline::after(seconds(60))).ok());
  stores[1]->give_up(Status(StatusCode::out_of_memory, "too long"));
  ASSERT_EQ(waits.wait_for(seconds(60)), std::future_status::ready);
  const Status status = waits.get();
  EXPECT_EQ(status.code(), StatusCode::unavailable);
  EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.to_string();
  EXPECT_EQ(stores[1]->set("more", "", Deadline::after(seconds(60))).code(),
            StatusCode::out_of_memory);
}

// Rank 0's process ends when it knows why nothing came of a call, and the others shall know it, too.
TEST(ServedStore, WhatRankZeroHasReadOthersCanReadWhenItHasGone) {
  auto stores = two_stores();
  ASSERT_TRUE(stores[0] != nullptr && stores[1] != nullptr);
  ASSERT_TRUE(stores[0]->set("why", "for this", Deadline::after(seconds(60))).ok());
  auto gone = std::async(std::launch::async, [&] { stores[0].reset(); });
  // Its connection has ended by now.
  const auto never = stores[1]->get("what it did not say", Deadline::after(seconds(60)));
  EXPECT_EQ(never.status().code(), StatusCode::unavailable) << never.status().to_string();
  EXPECT_NE(never.status().message().find("rank 0"), std::string::npos)
      << never.status().to_string();
  const auto why = stores[1]->get("why", Deadline::after(seconds(60)));
  ASSERT_TRUE(why.ok()) << why.status().to_string();
  EXPECT_EQ(*why, "for this");
  stores[1].reset();
  gone.get();
}

}  // namespace
}  // namespace sluice
