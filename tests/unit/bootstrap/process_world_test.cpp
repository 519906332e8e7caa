// SPDX-License-Identifier: MIT
//
// Worlds of processes whose ranks are threads here: the same sockets, shared memory and monitors,
// where sanitizers can watch.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include "memory/mapping.hpp"
#include "ranks.hpp"
#include "sluice/limits.hpp"
#include "sluice/world.hpp"
#include "store/address.hpp"
#include "store/socket.hpp"

namespace sluice {
namespace {

using base::Deadline;
using bootstrap::Group;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::for_each_rank;
using testing::kPatient;
using testing::new_rendezvous;

std::string free_tcp_rendezvous(const std::string& host) {
  store::Address address;
  address.host = host;
  auto listener = store::listen_at(address);
  if (!listener.ok()) return "";
  address.port = store::bound_port(*listener).value();
  return store::to_string(address);
}

TEST(ProcessWorld, JoinsAtEveryKindOfRendezvous) {
  for (const std::string& rendezvous :
       {new_rendezvous(), free_tcp_rendezvous("127.0.0.1"), free_tcp_rendezvous("::1"),
        free_tcp_rendezvous("localhost")}) {
    if (rendezvous.empty()) continue;  // A machine without IPv6.
    for_each_rank(3, [&](int rank) {
      auto world = World::join(rank, 3, rendezvous, kPatient);
      ASSERT_TRUE(world.ok()) << rendezvous << ": " << world.status().to_string();
      EXPECT_EQ(world->rank(), rank);
      EXPECT_EQ(world->size(), 3);
      auto all = world->all_gather(std::string(static_cast<std::size_t>(rank), 'x'));
      ASSERT_TRUE(all.ok()) << all.status().to_string();
      EXPECT_EQ((*all)[2], "xx");
      EXPECT_TRUE(world->barrier().ok());
      EXPECT_TRUE(world->leave(seconds(60)).ok());
      EXPECT_EQ(world->barrier().code(), StatusCode::failed_precondition);
    });
  }
}

TEST(ProcessWorld, OneNameServesWorldAfterWorld) {
  const std::string rendezvous = new_rendezvous();
  for_each_rank(4, [&](int rank) {
    for (int round = 0; round < 5; ++round) {
      auto world = World::join(rank, 4, rendezvous, kPatient);
      ASSERT_TRUE(world.ok()) << "round " << round << ": " << world.status().to_string();
      auto all = world->all_gather(std::to_string(round));
      ASSERT_TRUE(all.ok());
      for (const std::string& blob : *all) EXPECT_EQ(blob, std::to_string(round));
      ASSERT_TRUE(world->leave(seconds(60)).ok());
    }
  });
}

TEST(ProcessWorld, SixteenRanksWithSeveralWorldsEach) {
  const std::string first = new_rendezvous();
  const std::string second = new_rendezvous();
  for_each_rank(16, [&](int rank) {
    auto one = World::join(rank, 16, first, kPatient);
    ASSERT_TRUE(one.ok()) << one.status().to_string();
    auto two = World::join(15 - rank, 16, second, kPatient);
    ASSERT_TRUE(two.ok()) << two.status().to_string();
    for (int round = 0; round < 3; ++round) {
      auto all = one->all_gather(std::to_string(rank));
      auto other = two->all_gather(std::to_string(rank));
      ASSERT_TRUE(all.ok() && other.ok());
      EXPECT_EQ((*all)[3], "3");
      EXPECT_EQ((*other)[3], "12");
    }
    auto part = one->split(rank % 3 == 2 ? -1 : rank % 3, -rank);
    if (rank % 3 == 2) {
      EXPECT_EQ(part.status().code(), StatusCode::failed_precondition);
    } else {
      ASSERT_TRUE(part.ok()) << part.status().to_string();
      auto members = part->all_gather(std::to_string(rank));
      ASSERT_TRUE(members.ok());
      EXPECT_EQ(members->front(), rank % 3 == 0 ? "15" : "13");
      EXPECT_EQ((*members)[static_cast<std::size_t>(part->rank())], std::to_string(rank));
      EXPECT_TRUE(part->barrier().ok());
    }
    EXPECT_TRUE(one->barrier().ok());
    EXPECT_TRUE(two->barrier().ok());
  });
}

TEST(ProcessWorld, LargeBlobsOfAllToAllDoNotBlockEachOther) {
  const std::string rendezvous = new_rendezvous();
  for_each_rank(4, [&](int rank) {
    auto world = World::join(rank, 4, rendezvous, kPatient);
    ASSERT_TRUE(world.ok()) << world.status().to_string();
    for (const std::size_t bytes : {std::size_t{3} << 20, std::size_t{0}, std::size_t{70000}}) {
      const std::string mine(bytes + static_cast<std::size_t>(rank), static_cast<char>('a' + rank));
      auto all = world->all_gather(mine);
      ASSERT_TRUE(all.ok()) << all.status().to_string();
      for (int peer = 0; peer < 4; ++peer) {
        const auto& blob = (*all)[static_cast<std::size_t>(peer)];
        EXPECT_EQ(blob, std::string(bytes + static_cast<std::size_t>(peer),
                                    static_cast<char>('a' + peer)));
      }
    }
  });
}

TEST(ProcessWorld, SharesMemoryThatOutlivesItsOwner) {
  const std::string rendezvous = new_rendezvous();
  for_each_rank(3, [&](int rank) {
    auto world = World::join(rank, 3, rendezvous, kPatient);
    ASSERT_TRUE(world.ok()) << world.status().to_string();
    Group& group = *world->group();
    const auto deadline = Deadline::after(seconds(60));
    auto region = group.share(static_cast<std::size_t>(rank) * 5000, rank == 2, deadline);
    ASSERT_TRUE(region.ok()) << region.status().to_string();
    EXPECT_EQ(region->bytes(0), 0U);
    if (rank == 1) std::memset(region->base(2) + 100, 7, 4);
    ASSERT_TRUE(world->barrier().ok());
    if (rank == 2) {
      EXPECT_EQ(region->base(2)[103], std::byte{7});
      region->base(2)[0] = std::byte{9};
      *region = {};  // The peers' mappings keep the memory.
    }
    ASSERT_TRUE(world->barrier().ok());
    if (rank != 2) {
      EXPECT_EQ(region->base(2)[0], std::byte{9});
    }
  });
}

TEST(ProcessWorld, DifferentCollectivesAreAMismatch) {
  const std::string rendezvous = new_rendezvous();
  for_each_rank(2, [&](int rank) {
    auto world = World::join(rank, 2, rendezvous, kPatient);
    ASSERT_TRUE(world.ok());
    const Status status = rank == 0 ? world->barrier() : world->split(0, 0).status();
    // Whoever looks second may find the first one gone.
    EXPECT_TRUE(status.code() == StatusCode::mismatch || status.code() == StatusCode::unavailable)
        << status.to_string();
  });
}

TEST(ProcessWorld, DestructionWithoutLeaveIsADeathAndLeavingIsNot) {
  const std::string rendezvous = new_rendezvous();
  for_each_rank(3, [&](int rank) {
    auto world = World::join(rank, 3, rendezvous, kPatient);
    ASSERT_TRUE(world.ok());
    Group& group = *world->group();
    if (rank == 1) {
      EXPECT_TRUE(world->leave(seconds(60)).ok());
      return;
    }
    if (rank == 2) return;
    memory::Sleeper sleeper(group.control(0).doorbell);
    const auto left = static_cast<std::uint32_t>(memory::RankState::left);
    while (!group.is_dead(2) || group.control(1).state.load() != left) {
      sleeper.prepare();
      if (group.is_dead(2) && group.control(1).state.load() == left) break;
      sleeper.sleep(60'000'000'000);
    }
    EXPECT_FALSE(group.is_dead(1));
    EXPECT_FALSE(group.has_ended(2));  // Its process is this one, which lives.
    EXPECT_EQ(world->barrier().code(), StatusCode::unavailable);
  });
}

// As one that had no memory in the midst of a collective call: it lives, and so do its communicators.
TEST(ProcessWorld, WhoIsCutShortIsNoDeath) {
  const std::string rendezvous = new_rendezvous();
  for_each_rank(2, [&](int rank) {
    auto world = World::join(rank, 2, rendezvous, kPatient);
    ASSERT_TRUE(world.ok());
    Group& group = *world->group();
    if (rank == 1) {
      group.give_up(Status(StatusCode::out_of_memory, "a test"));
      const Status own = world->barrier();
      EXPECT_EQ(own.code(), StatusCode::out_of_memory) << own.to_string();
      EXPECT_TRUE(world->leave(seconds(60)).ok());
      return;
    }
    const Status status = world->barrier();
    EXPECT_EQ(status.code(), StatusCode::unavailable);
    // Or it has left since then.
    EXPECT_TRUE(status.message().find("rank 1 was cut short") != std::string::npos ||
                status.message().find("rank 1 has left") != std::string::npos)
        << status.to_string();
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_FALSE(group.is_dead(1));
  });
}

TEST(ProcessWorld, WhoWasCutShortAndEndsIsDead) {
  const std::string rendezvous = new_rendezvous();
  std::atomic<bool> seen{false};
  for_each_rank(2, [&](int rank) {
    auto world = World::join(rank, 2, rendezvous, kPatient);
    ASSERT_TRUE(world.ok());
    Group& group = *world->group();
    if (rank == 1) {
      group.give_up(Status(StatusCode::out_of_memory, "a test"));
      while (!seen.load()) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    EXPECT_NE(world->barrier().message().find("rank 1 was cut short"), std::string::npos);
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_FALSE(group.is_dead(1));
    seen.store(true);
    const auto deadline = Deadline::after(seconds(60));
    while (!group.is_dead(1) && !deadline.expired()) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_TRUE(group.is_dead(1));
  });
}

// Each of them ends its half of their connection: that is neither's death, nor is a third one's leave.
TEST(ProcessWorld, TwoThatAreCutShortAreNotDeadToEachOther) {
  const std::string rendezvous = new_rendezvous();
  std::atomic<int> done{0};
  for_each_rank(3, [&](int rank) {
    auto world = World::join(rank, 3, rendezvous, kPatient);
    ASSERT_TRUE(world.ok());
    Group& group = *world->group();
    if (rank < 2) {
      group.give_up(Status(StatusCode::out_of_memory, "a test"));
    } else {
      EXPECT_FALSE(world->barrier().ok());
      std::this_thread::sleep_for(milliseconds(50));
      EXPECT_TRUE(world->leave(seconds(60)).ok());
    }
    std::this_thread::sleep_for(milliseconds(100));
    for (int peer = 0; peer < 2; ++peer) EXPECT_FALSE(group.is_dead(peer)) << rank << " " << peer;
    ++done;
    while (done.load() < 3) std::this_thread::sleep_for(milliseconds(1));
  });
}

TEST(ProcessWorld, AMissingRankIsNamedAtTheDeadline) {
  const std::string rendezvous = new_rendezvous();
  for_each_rank(2, [&](int rank) {
    auto world = World::join(rank, 3, rendezvous, {milliseconds(300)});
    ASSERT_FALSE(world.ok());
    // Rank 1 may hear of its own deadline, or that rank 0 gave up first.
    EXPECT_TRUE(world.status().code() == StatusCode::deadline_exceeded ||
                world.status().code() == StatusCode::unavailable)
        << world.status().to_string();
    if (rank == 0 && world.status().code() == StatusCode::deadline_exceeded) {
      EXPECT_NE(world.status().message().find("rank 2"), std::string::npos);
    }
  });
}

TEST(ProcessWorld, RefusesBadArgumentsBeforeItTalksToAnybody) {
  EXPECT_EQ(World::join(2, 2, "unix:x").status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(World::join(-1, 2, "unix:x").status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(World::join(0, 0, "unix:x").status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(World::join(0, kMaxRanks + 1, "unix:x").status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(World::join(0, 1, "http://x").status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(World::create(0, 1, nullptr).status().code(), StatusCode::invalid_argument);
  auto alone = World::join(0, 1, "unix:nobody-needs-it");
  ASSERT_TRUE(alone.ok()) << alone.status().to_string();
  EXPECT_TRUE(alone->barrier().ok());
}

TEST(ProcessWorld, OtherSizesAtOneRendezvousAreAMismatch) {
  const std::string rendezvous = new_rendezvous();
  for_each_rank(2, [&](int rank) {
    auto world = World::join(rank, rank == 0 ? 2 : 3, rendezvous, {milliseconds(1000)});
    ASSERT_FALSE(world.ok());
    if (rank == 1) {
      EXPECT_EQ(world.status().code(), StatusCode::mismatch) << world.status().to_string();
      EXPECT_NE(world.status().message().find("world of 3"), std::string::npos);
    }
  });
}

}  // namespace
}  // namespace sluice
