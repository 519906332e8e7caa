// SPDX-License-Identifier: MIT
#include "bootstrap/thread_group.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "ranks.hpp"
#include "sluice/limits.hpp"
#include "sluice/world.hpp"

namespace sluice {
namespace {

using base::Deadline;
using bootstrap::Group;
using bootstrap::ThreadGroup;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::for_each_rank;

TEST(ThreadGroup, GathersInRankOrderRoundAfterRound) {
  constexpr int kSize = 5;
  auto groups = ThreadGroup::create_all(kSize);
  for_each_rank(kSize, [&](int rank) {
    Group& group = *groups[static_cast<std::size_t>(rank)];
    EXPECT_EQ(group.rank(), rank);
    EXPECT_EQ(group.size(), kSize);
    for (int round = 0; round < 200; ++round) {
      const std::string mine = rank == 2 ? "" : std::to_string(rank * 1000 + round);
      auto all = group.all_gather(mine, Deadline::after(seconds(60)));
      ASSERT_TRUE(all.ok()) << all.status().to_string();
      ASSERT_EQ(all->size(), static_cast<std::size_t>(kSize));
      for (int peer = 0; peer < kSize; ++peer) {
        const std::string theirs = peer == 2 ? "" : std::to_string(peer * 1000 + round);
        EXPECT_EQ((*all)[static_cast<std::size_t>(peer)], theirs);
      }
    }
  });
}

TEST(ThreadGroup, SharesOneMappingThatOutlivesItsOwner) {
  constexpr int kSize = 3;
  auto groups = ThreadGroup::create_all(kSize);
  std::vector<memory::SharedRegion> regions(kSize);
  for_each_rank(kSize, [&](int rank) {
    auto& group = *groups[static_cast<std::size_t>(rank)];
    const auto bytes = static_cast<std::size_t>(rank) * 5000;  // Rank 0 brings nothing.
    auto region = group.share(bytes, rank == 1, Deadline::after(seconds(60)));
    ASSERT_TRUE(region.ok()) << region.status().to_string();
    EXPECT_EQ(region->bytes(0), 0U);
    EXPECT_GE(region->bytes(2), 10000U);
    if (rank == 1) std::memset(region->base(2), 0x11, 10000);
    regions[static_cast<std::size_t>(rank)] = std::move(*region);
  });
  EXPECT_EQ(regions[0].base(2), regions[1].base(2));
  std::byte* base = regions[1].base(2);
  regions[2] = {};
  groups.clear();
  regions[0] = {};
  EXPECT_EQ(base[9999], std::byte{0x11});
}

TEST(ThreadGroup, AFailedShareIsTheSameEverywhereAndHarmless) {
  constexpr int kSize = 3;
  auto groups = ThreadGroup::create_all(kSize);
  std::vector<std::string> errors(kSize);
  for_each_rank(kSize, [&](int rank) {
    auto& group = *groups[static_cast<std::size_t>(rank)];
    const std::size_t bytes = rank == 0 ? 4096 : std::size_t{1} << 62;
    auto refused = group.share(bytes, false, Deadline::after(seconds(60)));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::out_of_memory);
    errors[static_cast<std::size_t>(rank)] = refused.status().message();
    auto region = group.share(4096, true, Deadline::after(seconds(60)));
    EXPECT_TRUE(region.ok());
  });
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_EQ(errors[0], errors[2]);
  EXPECT_NE(errors[0].find("rank 1"), std::string::npos) << errors[0];
}

TEST(ThreadGroup, ADeadlineNamesTheRanksThatDidNotCome) {
  auto groups = ThreadGroup::create_all(4);
  std::thread other([&] {
    auto all = groups[1]->all_gather("b", Deadline::after(seconds(60)));
    ASSERT_FALSE(all.ok());
    EXPECT_EQ(all.status().code(), StatusCode::deadline_exceeded);
  });
  auto all = groups[3]->all_gather("d", Deadline::after(milliseconds(200)));
  other.join();
  ASSERT_FALSE(all.ok());
  EXPECT_EQ(all.status().code(), StatusCode::deadline_exceeded);
  EXPECT_NE(all.status().message().find("ranks 0 and 2 did not come"), std::string::npos)
      << all.status().message();
  // The late ones fail at once instead of waiting for a round that is over.
  auto late = groups[0]->all_gather("a", Deadline::never());
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.status().code(), StatusCode::deadline_exceeded);
  EXPECT_NE(late.status().message().find("earlier"), std::string::npos) << late.status().message();
}

TEST(ThreadGroup, LeavingEndsTheWaitsOfOthers) {
  auto groups = ThreadGroup::create_all(2);
  std::thread leaver([&] { EXPECT_TRUE(groups[1]->leave(Deadline::after(seconds(1))).ok()); });
  auto all = groups[0]->all_gather("a", Deadline::after(seconds(60)));
  leaver.join();
  ASSERT_FALSE(all.ok());
  EXPECT_EQ(all.status().code(), StatusCode::unavailable);
  EXPECT_NE(all.status().message().find("rank 1 left"), std::string::npos);
  EXPECT_FALSE(groups[0]->is_dead(1));
  EXPECT_EQ(groups[0]->control(1).state.load(),
            static_cast<std::uint32_t>(memory::RankState::left));
  EXPECT_EQ(groups[1]->all_gather("b", Deadline::never()).status().code(),
            StatusCode::failed_precondition);
}

TEST(ThreadGroup, WhoIsCutShortEndsTheCallsOfAll) {
  auto groups = ThreadGroup::create_all(2);
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(20));
    groups[1]->give_up(Status(StatusCode::out_of_memory, "a test"));
  });
  const Status waiting = groups[0]->all_gather("a", Deadline::after(seconds(60))).status();
  other.join();
  EXPECT_EQ(waiting.code(), StatusCode::out_of_memory);
  EXPECT_NE(waiting.message().find("rank 1 was cut short: a test"), std::string::npos)
      << waiting.message();
  EXPECT_EQ(groups[1]->all_gather("b", Deadline::never()).status().code(),
            StatusCode::out_of_memory);
  EXPECT_FALSE(groups[0]->is_dead(1));
}

TEST(ThreadGroup, DestructionWithoutLeaveIsADeathThatRings) {
  auto groups = ThreadGroup::create_all(2);
  std::thread waiter([&] {
    memory::Sleeper sleeper(groups[0]->control(0).doorbell);
    while (!groups[0]->is_dead(1)) {
      sleeper.prepare();
      if (groups[0]->is_dead(1)) break;
      sleeper.sleep(60'000'000'000);
    }
  });
  groups[1].reset();
  waiter.join();
  EXPECT_EQ(groups[0]->all_gather("a", Deadline::never()).status().code(), StatusCode::unavailable);
}

TEST(WorldThreads, SplitsByColorOrderedByKey) {
  constexpr int kSize = 6;
  auto worlds = World::threads(kSize);
  ASSERT_TRUE(worlds.ok());
  for_each_rank(kSize, [&](int rank) {
    World& world = (*worlds)[static_cast<std::size_t>(rank)];
    const int color = rank == 5 ? -1 : rank % 2;
    auto part = world.split(color, -rank);
    if (rank == 5) {
      EXPECT_EQ(part.status().code(), StatusCode::failed_precondition);
    } else {
      ASSERT_TRUE(part.ok()) << part.status().to_string();
      // Keys descend with the rank: 4, 2, 0 and 3, 1.
      EXPECT_EQ(part->size(), color == 0 ? 3 : 2);
      EXPECT_EQ(part->rank(), color == 0 ? (4 - rank) / 2 : (3 - rank) / 2);
      auto all = part->all_gather(std::to_string(rank));
      ASSERT_TRUE(all.ok()) << all.status().to_string();
      EXPECT_EQ(all->front(), color == 0 ? "4" : "3");
      EXPECT_TRUE(part->barrier().ok());
    }
    EXPECT_TRUE(world.barrier().ok());
  });
}

TEST(WorldThreads, ChecksItsArguments) {
  for (const int size : {-1, 0, kMaxRanks + 1}) {
    auto worlds = World::threads(size);
    ASSERT_FALSE(worlds.ok());
    EXPECT_EQ(worlds.status().code(), StatusCode::invalid_argument);
  }
  auto worlds = World::threads(1);
  ASSERT_TRUE(worlds.ok());
  World world = std::move(worlds->front());
  EXPECT_EQ(world.size(), 1);
  EXPECT_TRUE(world.barrier().ok());
  EXPECT_TRUE(world.leave(seconds(1)).ok());
  EXPECT_EQ(world.barrier().code(), StatusCode::failed_precondition);
  EXPECT_EQ(world.split(0, 0).status().code(), StatusCode::failed_precondition);
  EXPECT_EQ(world.leave(seconds(1)).code(), StatusCode::failed_precondition);
  World other = std::move(world);
  EXPECT_EQ(world.size(), 0);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(world.barrier().code(), StatusCode::failed_precondition);
}

}  // namespace
}  // namespace sluice
