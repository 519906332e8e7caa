// SPDX-License-Identifier: MIT
//
// Ranks as real processes, with real faults. Children answer by their exit codes: 0 is good, other
// numbers name the step that was not.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "base/deadline.hpp"
#include "bootstrap/group.hpp"
#include "bootstrap/host_identity.hpp"
#include "bootstrap/process_group.hpp"
#include "bootstrap/rendezvous.hpp"
#include "bootstrap/store_gather.hpp"
#include "memory/mapping.hpp"
#include "ranks.hpp"
#include "sluice/world.hpp"
#include "store/address.hpp"
#include "store/socket_store.hpp"
#include "support/address_space.hpp"

namespace sluice {
namespace {

using base::Deadline;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ForkedRanks;
using testing::kPatient;
using testing::new_rendezvous;

/// Memory that parent and children share beside the library: notes from child to parent.
class Notes {
 public:
  Notes()
      : file_(memory::create_memory_file(4096, true)),
        mapping_(memory::Mapping::of_file(*file_, 4096)) {}
  char* text(int rank) { return reinterpret_cast<char*>(mapping_->base()) + 1024 + rank * 512; }
  void write(int rank, const std::string& words) { std::strncpy(text(rank), words.c_str(), 511); }
  std::atomic<int>& counter(int which = 0) {
    return reinterpret_cast<std::atomic<int>*>(mapping_->base())[which];
  }
  /// For a minute: who has not come by then is missed by what follows.
  void await(int count) {
    const auto end = Deadline::after(seconds(60));
    while (counter().load() < count && !end.expired()) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

 private:
  Result<base::Descriptor> file_;
  Result<memory::Mapping> mapping_;
};

bool unix_name_exists(const std::string& name) {
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    if (line.find("@" + name) != std::string::npos) return true;
  }
  return false;
}

TEST(ForkedWorld, ProcessesShareMemoryAndWakeEachOther) {
  SLUICE_SKIP_FORK_UNDER_TSAN();
  const std::string rendezvous = new_rendezvous();
  ForkedRanks ranks(4, [&](int rank) {
    auto world = World::join(rank, 4, rendezvous, kPatient);
    if (!world.ok()) return 1;
    auto region = world->group()->share(8192, true, Deadline::after(seconds(60)));
    if (!region.ok()) return 2;
    // A token goes round: each rank waits for it in its own memory, on its own doorbell.
    auto& mine = *reinterpret_cast<std::atomic<int>*>(region->base(rank));
    const int next = (rank + 1) % 4;
    auto& theirs = *reinterpret_cast<std::atomic<int>*>(region->base(next));
    for (int round = 1; round <= 50; ++round) {
      if (rank == 0) {
        theirs.store(round);
        world->group()->control(next).doorbell.ring();
      }
      {
        memory::Sleeper sleeper(world->group()->control(rank).doorbell);
        while (mine.load() < round) {
          sleeper.prepare();
          if (mine.load() >= round) break;
          sleeper.sleep(60'000'000'000);
        }
      }
      if (rank != 0) {
        theirs.store(round);
        world->group()->control(next).doorbell.ring();
      }
    }
    if (!world->leave(seconds(60)).ok()) return 3;
    return 0;
  });
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(ranks.exit_code(rank), 0) << "rank " << rank;
}

// Ranks 0 and 1 wait in `call`; rank 2 never comes, and is killed or stopped.
void expect_end(int signal, const std::function<Status(World&)>& call, StatusCode expected) {
  const std::string rendezvous = new_rendezvous();
  Notes notes;
  ForkedRanks ranks(3, [&](int rank) {
    auto world = World::join(rank, 3, rendezvous, kPatient);
    if (!world.ok()) return 1;
    if (!world->barrier().ok()) return 2;
    notes.counter().fetch_add(1);
    if (rank == 2) {
      for (;;) ::pause();
    }
    const Status status = call(*world);
    notes.write(rank, status.to_string());
    if (status.code() != expected) return 3;
    if (status.message().find("rank 2") == std::string::npos) return 4;
    // Dead, not merely late: the monitor knows too, and soon that no thread of it is left.
    memory::Sleeper sleeper(world->group()->control(rank).doorbell);
    while (signal == SIGKILL && !world->group()->is_dead(2)) {
      sleeper.prepare();
      if (world->group()->is_dead(2)) break;
      sleeper.sleep(60'000'000'000);
    }
    const auto patience = Deadline::after(seconds(60));
    while (signal == SIGKILL && !world->group()->has_ended(2)) {
      if (patience.expired()) return 6;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (signal != SIGKILL && world->group()->is_dead(2)) return 5;
    if (signal != SIGKILL && world->group()->has_ended(2)) return 7;
    return 0;
  });
  notes.await(3);
  ranks.signal(2, signal);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks.exit_code(rank), 0) << "rank " << rank << " saw " << notes.text(rank);
  }
}

Status share_status(World& world, Deadline deadline) {
  return world.group()->share(4096, true, deadline).status();
}
Status gather_status(World& world, Deadline deadline) {
  return world.group()->all_gather("x", deadline).status();
}

TEST(ForkedWorld, AKilledRankEndsWaitsAtOnce) {
  SLUICE_SKIP_FORK_UNDER_TSAN();
  // Without a deadline: only the death itself can end the wait.
  for (const auto call : {gather_status, share_status}) {
    expect_end(
        SIGKILL, [call](World& world) { return call(world, Deadline::never()); },
        StatusCode::unavailable);
  }
}

TEST(ForkedWorld, AStoppedRankIsADeadline) {
  SLUICE_SKIP_FORK_UNDER_TSAN();
  for (const auto call : {gather_status, share_status}) {
    expect_end(
        SIGSTOP, [call](World& world) { return call(world, Deadline::after(milliseconds(300))); },
        StatusCode::deadline_exceeded);
  }
}

/// A child of its own for a rank, which outlives it.
pid_t fork_idle_child(bool by_the_library) {
  const pid_t child =
      by_the_library ? ::fork() : static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (child != 0) return child;
  ::alarm(60);
  for (;;) ::pause();
}

void kill_child(pid_t child) {
  if (child > 0) ::kill(child, SIGKILL);
}

// A child that fork() does not know of keeps the sockets open.
TEST(ForkedWorld, ADeathShowsEvenIfAChildThatWasClonedKeepsTheSocketsOpen) {
  SLUICE_SKIP_FORK_UNDER_TSAN();
  const auto own = bootstrap::watch_process(::getpid());
  if (!own.ok() || !own.value().open()) GTEST_SKIP() << "this kernel cannot watch processes";
  const std::string rendezvous = new_rendezvous();
  Notes notes;
  ForkedRanks ranks(2, [&](int rank) {
    auto world = World::join(rank, 2, rendezvous, kPatient);
    if (!world.ok()) return 1;
    if (rank == 1) {
      notes.counter().store(fork_idle_child(false));
      for (;;) ::pause();
    }
    const Status status = gather_status(*world, Deadline::never());
    return status.code() == StatusCode::unavailable ? 0 : 2;
  });
  notes.await(1);
  ranks.signal(1, SIGKILL);
  EXPECT_EQ(ranks.exit_code(0), 0);
  kill_child(notes.counter().load());
}

// Ranks 0 and 2 of one node, rank 1 of another. Rank 0 serves the store.
TEST(ForkedWorld, ADeathShowsOnSeveralNodesEvenIfAForkedChildLives) {
  SLUICE_SKIP_FORK_UNDER_TSAN();
  for (const int victim : {0, 1, 2}) {
    const auto address = store::parse_address(new_rendezvous());
    Notes notes;
    ForkedRanks ranks(3, [&](int rank) {
      bootstrap::HostIdentity host = *bootstrap::this_host();
      if (rank == 1) host.node += "/1";
      bootstrap::Rendezvous meeting(*address, rank, 3, Deadline::after(seconds(60)));
      auto group = bootstrap::ProcessGroup::create(
          rank, 3, [&](std::string_view blob) { return meeting.gather(blob); },
          Deadline::after(seconds(60)), host, {"localhost", nullptr});
      meeting.end(group.ok());
      if (!group.ok()) return 1;
      if (!(*group)->all_gather("", Deadline::after(seconds(60))).ok()) return 2;
      if (rank == victim) notes.counter(2).store(fork_idle_child(true));
      notes.counter().fetch_add(1);  // It is done with that one.
      while (rank == victim) ::pause();
      const Status status = (*group)->all_gather("", Deadline::never()).status();
      notes.write(rank, status.to_string());
      if (status.code() != StatusCode::unavailable) return 3;
      // Whoever serves it, or is served by it, hears of its end, too, unless ranks took more than two seconds to connect.
      const auto patience = Deadline::after(seconds(20));
      while (!testing::kSanitized && !(*group)->nodes().together(rank, victim) &&
             !(*group)->hung_up(victim)) {
        if (patience.expired()) return 4;
        std::this_thread::sleep_for(milliseconds(1));
      }
      // Who has failed ends, which the others would take for the death that they are to see.
      notes.counter(1).fetch_add(1);
      const auto end = Deadline::after(seconds(20));
      while (notes.counter(1).load() < 2 && !end.expired()) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      return 0;
    });
    notes.await(3);
    ranks.signal(victim, SIGKILL);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(ranks.exit_code(rank), 0)
          << "rank " << rank << " without rank " << victim << ": " << notes.text(rank);
      if (victim != 0) {
        EXPECT_NE(std::string(notes.text(rank)).find("rank " + std::to_string(victim)),
                  std::string::npos)
            << notes.text(rank);
      }
    }
    kill_child(notes.counter(2).load());
  }
}

TEST(ForkedWorld, AForkedChildOfARankDisturbsNobody) {
  SLUICE_SKIP_FORK_UNDER_TSAN();
  const std::string rendezvous = new_rendezvous();
  ForkedRanks ranks(2, [&](int rank) {
    auto world = World::join(rank, 2, rendezvous, kPatient);
    if (!world.ok()) return 1;
    const pid_t child = ::fork();
    if (child == 0) {
      const bool refused = world->barrier().code() == StatusCode::failed_precondition &&
                           world->leave(seconds(1)).code() == StatusCode::failed_precondition;
      { const World ended = std::move(*world); }
      ::_exit(refused ? 0 : 9);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return 2;
    if (!world->barrier().ok()) return 3;
    return world->leave(seconds(60)).ok() ? 0 : 4;
  });
  EXPECT_EQ(ranks.exit_code(0), 0);
  EXPECT_EQ(ranks.exit_code(1), 0);
}

TEST(ForkedWorld, TooLittleMemoryOnOneRankIsTheSameErrorEverywhere) {
  SLUICE_SKIP_FORK_UNDER_TSAN();
  for (const bool file_limit : {true, false}) {
    if (!file_limit && testing::kAddressSanitizer)
      continue;  // It reserves far more than the limit.
    const std::string rendezvous = new_rendezvous();
    Notes notes;
    ForkedRanks ranks(3, [&](int rank) {
      auto world = World::join(rank, 3, rendezvous, kPatient);
      if (!world.ok()) return 1;
      if (rank == 1) {
        const rlim_t bytes = file_limit ? 1 << 20 : testing::address_space() + (rlim_t{600} << 20);
        const rlimit limit{bytes, bytes};
        if (::setrlimit(file_limit ? RLIMIT_FSIZE : RLIMIT_AS, &limit) != 0) return 2;
      }
      const auto deadline = Deadline::after(seconds(60));
      // The file limit stops rank 1's own memory; the address space, the mapping of all three.
      auto refused =
          world->group()->share(std::size_t{file_limit ? 4U : 400U} << 20, file_limit, deadline);
      notes.write(rank, refused.status().to_string());
      if (refused.ok()) return 3;
      if (refused.status().code() != StatusCode::out_of_memory) return 4;
      auto region = world->group()->share(65536, true, deadline);
      if (!region.ok()) return 5;
      region->base((rank + 1) % 3)[rank] = std::byte{1};
      return world->barrier().ok() ? 0 : 6;
    });
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(ranks.exit_code(rank), 0) << "rank " << rank << " saw " << notes.text(rank);
    }
    EXPECT_STREQ(notes.text(0), notes.text(1));
    EXPECT_STREQ(notes.text(0), notes.text(2));
    EXPECT_NE(std::string(notes.text(0)).find("rank 1"), std::string::npos) << notes.text(0);
  }
}

TEST(ForkedWorld, ADeathWhileJoiningEndsTheJoinOfOthers) {
  SLUICE_SKIP_FORK_UNDER_TSAN();
  // Three of four come; the fourth place stays empty, so all three wait when rank 2 is killed.
  const std::string rendezvous = new_rendezvous();
  const auto address = store::parse_address(rendezvous);
  Notes notes;
  ForkedRanks ranks(3, [&](int rank) {
    const auto never = Deadline::never();
    Status status;
    if (rank == 0) {
      notes.counter().fetch_add(1);
      status = World::join(0, 4, rendezvous, {std::chrono::nanoseconds(-1)}).status();
    } else {
      // Counted once connected: the store ends with the first rank that hears of the death.
      auto client = store::SocketStore::connect(*address, {static_cast<unsigned>(rank), 4}, never);
      if (!client.ok()) return 1;
      notes.counter().fetch_add(1);
      while (rank == 2) ::pause();
      status = bootstrap::gather_through(**client, 0, rank, 4, "", never).status();
    }
    notes.write(rank, status.to_string());
    return status.code() == StatusCode::unavailable ? 0 : 2;
  });
  notes.await(3);
  ranks.signal(2, SIGKILL);
  EXPECT_EQ(ranks.exit_code(0), 0) << notes.text(0);
  EXPECT_EQ(ranks.exit_code(1), 0) << notes.text(1);
}

// Ranks of several nodes have more gathers than one. Rank 0 serves all of them; where each had a store of its own, nobody missed
// a rank that was gone before the next one.
TEST(ForkedWorld, ADeathBetweenTwoGathersEndsTheSecond) {
  SLUICE_SKIP_FORK_UNDER_TSAN();
  for (const int victim : {0, 1, 2}) {
    const auto address = store::parse_address(new_rendezvous());
    Notes notes;
    ForkedRanks ranks(3, [&](int rank) {
      bootstrap::Rendezvous rendezvous(*address, rank, 3, Deadline::after(seconds(100)));
      if (!rendezvous.gather("first").ok()) return 1;
      notes.counter().fetch_add(1);
      while (rank == victim) ::pause();
      const Status status = rendezvous.gather("second").status();
      notes.write(rank, status.to_string());
      return status.code() == StatusCode::unavailable ? 0 : 2;
    });
    notes.await(3);
    const auto killed = std::chrono::steady_clock::now();
    ranks.signal(victim, SIGKILL);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(ranks.exit_code(rank), 0) << notes.text(rank);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - killed, seconds(50)) << "not by a deadline";
  }
}

TEST(ForkedWorld, NothingStaysBehindWhenAllAreKilled) {
  SLUICE_SKIP_FORK_UNDER_TSAN();
  const std::string rendezvous = new_rendezvous();
  const std::string name = rendezvous.substr(5);
  {
    ForkedRanks ranks(2, [&](int rank) {  // Of three: they wait for the last one.
      if (World::join(rank, 3, rendezvous, kPatient).ok()) return 1;
      for (;;) ::pause();  // Who hears that the other was killed is still to be killed, not to end.
    });
    const auto end = Deadline::after(seconds(60));
    while (!unix_name_exists(name) && !end.expired()) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_TRUE(unix_name_exists(name));
    for (int rank = 0; rank < 2; ++rank) ranks.signal(rank, SIGKILL);
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.exit_code(rank), 1000 + SIGKILL);
  }
  EXPECT_FALSE(unix_name_exists(name));

  Notes notes;
  ForkedRanks ranks(2, [&](int rank) {
    auto world = World::join(rank, 2, rendezvous, kPatient);
    if (!world.ok()) return 1;
    auto region = world->group()->share(1 << 20, true, Deadline::after(seconds(60)));
    if (!region.ok()) return 2;
    // No part of it has a name in the file system.
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("sluice") != std::string::npos && line.find("/dev/shm") != std::string::npos) {
        return 3;
      }
    }
    notes.counter().fetch_add(1);
    for (;;) ::pause();
  });
  notes.await(2);
  EXPECT_FALSE(unix_name_exists(name));  // The rendezvous ends when the world has formed.
  for (int rank = 0; rank < 2; ++rank) ranks.signal(rank, SIGKILL);
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.exit_code(rank), 1000 + SIGKILL);
}

}  // namespace
}  // namespace sluice
