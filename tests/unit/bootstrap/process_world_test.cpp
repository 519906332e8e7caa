// SPDX-License-Identifier: MIT
//
// Worlds of processes whose ranks are threads here: the same sockets, shared memory and monitors,
// where sanitizers can watch.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/source_hash.hpp"
#include "bootstrap/mesh.hpp"
#include "bootstrap/process_group.hpp"
#include "bootstrap/store_gather.hpp"
#include "memory/mapping.hpp"
#include "ranks.hpp"
#include "sluice/limits.hpp"
#include "sluice/version.hpp"
#include "sluice/world.hpp"
#include "store/address.hpp"
#include "store/in_process_store.hpp"
#include "store/socket.hpp"

namespace sluice {
namespace {

using base::Deadline;
using bootstrap::Group;
using bootstrap::HostIdentity;
using bootstrap::ProcessGroup;
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

/// A gather of the caller's own, for World::create and for hosts that differ.
class OwnGather {
 public:
  Result<std::vector<std::string>> operator()(int rank, int size, std::string_view blob,
                                              int gather = 0) {
    return bootstrap::gather_through(store_, gather, rank, size, blob,
                                     Deadline::after(seconds(60)));
  }

 private:
  store::InProcessStore store_;
};

TEST(ProcessWorld, JoinsWithACallersAllGather) {
  OwnGather gather;
  for_each_rank(3, [&](int rank) {
    auto world = World::create(
        rank, 3, [&](std::string_view blob) { return gather(rank, 3, blob); }, kPatient);
    ASSERT_TRUE(world.ok()) << world.status().to_string();
    EXPECT_TRUE(world->barrier().ok());
  });
  auto wrong = World::create(0, 2, [](std::string_view blob) {
    return Result<std::vector<std::string>>(std::vector<std::string>{std::string(blob)});
  });
  EXPECT_EQ(wrong.status().code(), StatusCode::mismatch);
  // Of a build of other sources.
  const std::string sources(base::source_hash());
  EXPECT_EQ(sources.size(), 16U);
  const std::string others = "0123456789abcdef";
  auto other = World::create(0, 2, [&](std::string_view blob) {
    std::string theirs(blob);
    theirs.replace(theirs.find(sources), sources.size(), others);
    return Result<std::vector<std::string>>(std::vector<std::string>{std::string(blob), theirs});
  });
  EXPECT_EQ(other.status().code(), StatusCode::mismatch);
  const std::string version_text(version());
  EXPECT_NE(other.status().message().find("the rank at place 1 of the gather has sluice " +
                                          version_text + ", of sources " + others),
            std::string::npos)
      << other.status().to_string();
  auto throwing = World::create(0, 2, [](std::string_view) -> Result<std::vector<std::string>> {
    throw std::runtime_error("no network");
  });
  EXPECT_EQ(throwing.status().code(), StatusCode::internal);
}

/// One of three, of whom rank 1 is on a node of its own.
Result<std::unique_ptr<Group>> create_with_one_elsewhere(OwnGather& gather, int rank) {
  HostIdentity host = *bootstrap::this_host();
  if (rank == 1) host.node = "elsewhere";
  int calls = 0;
  return ProcessGroup::create(rank, 3,
                              [&](std::string_view blob) { return gather(rank, 3, blob, calls++); },
                              Deadline::after(seconds(60)), host, {"localhost", nullptr});
}

TEST(ProcessWorld, WhoIsCutShortOnAnotherNodeEndsTheCallsOfAll) {
  OwnGather gather;
  for_each_rank(3, [&](int rank) {
    const auto deadline = [] { return Deadline::after(seconds(60)); };
    auto group = create_with_one_elsewhere(gather, rank);
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    if (rank == 2) (*group)->give_up(Status(StatusCode::out_of_memory, "a test"));
    const Status status = (*group)->all_gather({}, deadline()).status();
    EXPECT_EQ(status.code(), rank == 2 ? StatusCode::out_of_memory : StatusCode::unavailable)
        << status.to_string();
    EXPECT_FALSE((*group)->is_dead(2));
    // Whom others may still ask lives until they have.
    static_cast<void>((*group)->leave(Deadline::after(seconds(5))));
  });
}

TEST(ProcessWorld, SeveralNodes) {
  OwnGather gather;
  for_each_rank(3, [&](int rank) {
    const auto deadline = [] { return Deadline::after(seconds(60)); };
    auto group = create_with_one_elsewhere(gather, rank);
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    bootstrap::Group& all = **group;
    EXPECT_EQ(all.nodes().nodes(), 2);
    EXPECT_TRUE(all.nodes().together(0, 2));
    EXPECT_FALSE(all.nodes().together(0, 1));
    EXPECT_NE(all.network(), nullptr);
    // More gathers than one, of different lengths: in one value of the store, and in several.
    const auto blob_of = [](int peer, std::size_t bytes) {
      std::string blob(static_cast<std::size_t>(peer) * bytes, 'x');
      for (std::size_t i = 0; i < blob.size(); i += 1000) blob[i] = static_cast<char>('a' + i % 23);
      return blob;
    };
    constexpr std::size_t kValue = std::size_t{1} << 20;
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kValue / 2 - 4, kValue / 2 - 3,
                                    kValue - 8, kValue - 7, std::size_t{2}, 3 * kValue}) {
      auto blobs = all.all_gather(blob_of(rank, bytes), deadline());
      ASSERT_TRUE(blobs.ok()) << blobs.status().to_string();
      for (int peer = 0; peer < 3; ++peer) {
        EXPECT_TRUE((*blobs)[static_cast<std::size_t>(peer)] == blob_of(peer, bytes))
            << peer << " " << bytes;
      }
    }
    // One that is too long is everybody's Status, and the world goes on.
    const std::string long_one(rank == 1 ? bootstrap::kBlobBytesMax + 1 : 5, 'x');
    const Status too_long = all.all_gather(long_one, deadline()).status();
    EXPECT_EQ(too_long.code(), StatusCode::invalid_argument) << too_long.to_string();
    EXPECT_NE(too_long.message().find("rank 1 gave a blob of 268435457"), std::string::npos);
    // Memory of one's node is mapped, that of others is not.
    auto shared = all.share(4096, true, deadline());
    ASSERT_TRUE(shared.ok()) << shared.status().to_string();
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(shared->base(peer) != nullptr, all.nodes().together(peer, rank)) << peer;
    }
    *shared->base(rank) = static_cast<std::byte>(rank + 1);
    ASSERT_TRUE(all.all_gather({}, deadline()).ok());
    if (rank == 0) {
      EXPECT_EQ(static_cast<int>(*shared->base(2)), 3);
    }
    // Trouble on one node is everybody's Status.
    auto none = all.share(rank == 1 ? std::size_t{1} << 62 : 64, false, deadline());
    EXPECT_EQ(none.status().code(), StatusCode::out_of_memory) << none.status().to_string();
    // Files reach one's own node; trouble with one is everybody's Status.
    auto files = all.exchange_files(memory::create_memory_file(4096, false), deadline());
    ASSERT_TRUE(files.ok()) << files.status().to_string();
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ((*files)[static_cast<std::size_t>(peer)].open(), all.nodes().together(peer, rank))
          << peer;
    }
    const Status trouble(StatusCode::out_of_memory, "no file");
    auto refused = all.exchange_files(
        rank == 1 ? Result<base::Descriptor>(trouble) : memory::create_memory_file(64, false),
        deadline());
    EXPECT_EQ(refused.status().code(), StatusCode::out_of_memory) << refused.status().to_string();
    auto part = all.split(rank == 2 ? 1 : 0, rank, deadline());
    ASSERT_TRUE(part.ok()) << part.status().to_string();
    EXPECT_EQ((*part)->size(), rank == 2 ? 1 : 2);
    EXPECT_TRUE((*part)->all_gather("part", deadline()).ok());
    EXPECT_TRUE((*part)->leave(deadline()).ok());
    EXPECT_TRUE(all.leave(deadline()).ok());
    EXPECT_EQ(all.all_gather({}, deadline()).status().code(), StatusCode::failed_precondition);
  });
}

TEST(ProcessWorld, OneRanksTroubleBeforeTheMeshIsEverybodysStatus) {
  OwnGather gather;
  for_each_rank(2, [&](int rank) {
    Result<HostIdentity> host = bootstrap::this_host();
    if (rank == 1) host = Status(StatusCode::io_error, "no /proc");
    auto group = ProcessGroup::create(
        rank, 2, [&](std::string_view blob) { return gather(rank, 2, blob); },
        Deadline::after(seconds(60)), host);
    ASSERT_FALSE(group.ok());
    EXPECT_EQ(group.status().to_string(), "io_error: rank 1: no /proc");
  });
}

// Machines restored from one image look like one machine, on which the other's processes are not to be found.
TEST(ProcessWorld, AMachineWithTheBootIdOfThisOneIsSuspected) {
  const auto watch = bootstrap::watch_process(::getpid());
  if (!watch.ok() || !watch->open()) GTEST_SKIP() << "this kernel does not watch processes";
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  OwnGather gather;
  for_each_rank(2, [&](int rank) {
    HostIdentity host = *bootstrap::this_host();
    if (rank == 1) host.process = child;
    auto group = ProcessGroup::create(
        rank, 2, [&](std::string_view blob) { return gather(rank, 2, blob); },
        Deadline::after(seconds(60)), host);
    EXPECT_EQ(group.status().code(), StatusCode::unavailable);
    if (rank == 1) return;  // It may have reached rank 0, which ended then.
    EXPECT_NE(group.status().message().find("boot_id: there SLUICE_NODE"), std::string::npos)
        << group.status().to_string();
  });
}

TEST(ProcessWorld, StrangersAtAListenerAreDropped) {
  OwnGather gather;
  std::mutex mutex;
  std::vector<base::Descriptor> strangers;
  for_each_rank(3, [&](int rank) {
    const auto own_gather = [&](std::string_view blob) -> Result<std::vector<std::string>> {
      auto all = gather(rank, 3, blob);
      if (!all.ok()) return all;
      // Every rank first sends strangers to rank 0: silent, garbage, and one that hangs up.
      const std::size_t at = all->front().find("sluice-");
      store::Address address;
      address.kind = store::Address::Kind::unix_abstract;
      address.name = all->front().substr(at, 7 + 32);
      for (int kind = 0; kind < 3; ++kind) {
        auto socket = store::connect_to(address, Deadline::after(seconds(60)));
        if (!socket.ok()) return socket.status();
        if (kind == 1) {
          const Status sent = store::send_all(*socket, std::string(36, 'g'),
                                              Deadline::after(seconds(60)), "garbage");
          if (!sent.ok()) return sent;
        }
        if (kind == 2) continue;
        const std::lock_guard lock(mutex);
        strangers.push_back(std::move(*socket));
      }
      return all;
    };
    auto world = World::create(rank, 3, own_gather, kPatient);
    ASSERT_TRUE(world.ok()) << world.status().to_string();
    EXPECT_TRUE(world->barrier().ok());
  });
}

}  // namespace
}  // namespace sluice
