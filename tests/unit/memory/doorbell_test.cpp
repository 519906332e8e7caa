// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <new>
#include <thread>
#include <vector>

#include "base/deadline.hpp"
#include "memory/control_page.hpp"
#include "memory/mapping.hpp"

namespace sluice::memory {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

// Waits without a timeout: a lost ring would hang the test, which its runner's limit then kills.
void await(Doorbell& bell, const std::atomic<std::uint64_t>& signal, std::uint64_t wanted) {
  Sleeper sleeper(bell);
  while (signal.load(std::memory_order_acquire) < wanted) {
    sleeper.prepare();
    if (signal.load(std::memory_order_acquire) >= wanted) break;
    sleeper.sleep(kForever);
  }
}

TEST(Doorbell, PingPongLosesNoRing) {
  constexpr std::uint64_t kRounds = 20000;
  Doorbell ping_bell;
  Doorbell pong_bell;
  std::atomic<std::uint64_t> ping{0};
  std::atomic<std::uint64_t> pong{0};
  std::uint64_t payload = 0;  // Ordered by the signals alone: the thread sanitizer watches it.
  std::thread answerer([&] {
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      await(ping_bell, ping, round);
      payload += 1;
      pong.store(round, std::memory_order_release);
      pong_bell.ring();
    }
  });
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    payload += 1;
    ping.store(round, std::memory_order_release);
    ping_bell.ring();
    await(pong_bell, pong, round);
  }
  answerer.join();
  EXPECT_EQ(payload, 2 * kRounds);
}

TEST(Doorbell, ManyRingersOneSleeper) {
  constexpr int kRingers = 6;
  constexpr std::uint64_t kRings = 4000;
  Doorbell bell;
  std::vector<std::atomic<std::uint64_t>> signals(kRingers);
  std::atomic<std::uint64_t> reached{0};
  std::vector<std::thread> ringers;
  for (auto& signal : signals) {
    ringers.emplace_back([&] {
      for (std::uint64_t ring = 1; ring <= kRings; ++ring) {
        signal.store(ring, std::memory_order_release);
        bell.ring();
        // Stay close to the sleeper, so that most rings meet it asleep or about to sleep.
        while (reached.load(std::memory_order_acquire) + 2 < ring) std::this_thread::yield();
      }
    });
  }
  for (std::uint64_t ring = 1; ring <= kRings; ++ring) {
    for (auto& signal : signals) await(bell, signal, ring);
    reached.store(ring, std::memory_order_release);
  }
  for (auto& ringer : ringers) ringer.join();
  EXPECT_EQ(bell.sleepers.load(), 0U);
  EXPECT_EQ(bell.word.load(), kRingers * kRings);
}

TEST(Doorbell, ManySleepersAreAllWoken) {
  Doorbell bell;
  std::atomic<std::uint64_t> signal{0};
  std::vector<std::thread> sleepers;
  for (int i = 0; i < 4; ++i) sleepers.emplace_back([&] { await(bell, signal, 1); });
  while (bell.sleepers.load() < 4) std::this_thread::yield();
  signal.store(1, std::memory_order_release);
  bell.ring();
  for (auto& sleeper : sleepers) sleeper.join();
  EXPECT_EQ(bell.sleepers.load(), 0U);
}

TEST(Doorbell, SleepEndsAtItsTimeout) {
  Doorbell bell;
  Sleeper sleeper(bell);
  sleeper.prepare();
  const std::int64_t before = base::now_ns();
  sleeper.sleep(20'000'000);
  EXPECT_GE(base::now_ns() - before, 15'000'000);
  sleeper.sleep(0);
  sleeper.sleep(-1);
}

TEST(Doorbell, ARingBetweenPrepareAndSleepKeepsAwake) {
  Doorbell bell;
  Sleeper sleeper(bell);
  sleeper.prepare();
  bell.ring();
  sleeper.sleep(kForever);  // Would hang if the ring were lost.
}

TEST(Doorbell, WorksBetweenProcesses) {
  auto file = create_memory_file(sizeof(ControlPage) * 2, true);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  // Two mappings: the processes use different addresses for the same words.
  auto ours = Mapping::of_file(*file, sizeof(ControlPage) * 2);
  auto theirs = Mapping::of_file(*file, sizeof(ControlPage) * 2);
  ASSERT_TRUE(ours.ok() && theirs.ok());
  constexpr std::uint32_t kRounds = 2000;
  const auto play = [](Mapping& mapping, int self) {
    auto* pages = reinterpret_cast<ControlPage*>(mapping.base());
    ControlPage& mine = pages[self];
    ControlPage& other = pages[1 - self];
    for (std::uint32_t round = 1; round <= kRounds; ++round) {
      if (self == 0) {
        mine.state.store(round, std::memory_order_release);
        other.doorbell.ring();
      }
      {
        Sleeper sleeper(mine.doorbell);
        while (other.state.load(std::memory_order_acquire) < round) {
          sleeper.prepare();
          if (other.state.load(std::memory_order_acquire) >= round) break;
          sleeper.sleep(kForever);
        }
      }
      if (self == 1) {
        mine.state.store(round, std::memory_order_release);
        other.doorbell.ring();
      }
    }
  };
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(60);
    play(*theirs, 1);
    ::_exit(7);
  }
  play(*ours, 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

}  // namespace
}  // namespace sluice::memory
