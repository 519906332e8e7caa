// SPDX-License-Identifier: MIT
//
// The fabric keeps its contract, and is as bad as it may be: what is wrong on some network is found
// on it. Ranks take turns in one thread, so that a seed is a schedule.
#include "transport/memory_fabric.hpp"

#include <gtest/gtest.h>

#include <array>

#include "unit/transport/round.hpp"

namespace sluice::transport {
namespace {

constexpr int kStepsMax = 200'000;

TEST(MemoryFabric, BringsEveryMessageWholeWithManySeeds) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Adversity adversity;
    adversity.seed = seed;
    adversity.window = 4 + static_cast<int>(seed % 60);
    Round round(3, 20, adversity, Scheme::per_message);
    ASSERT_TRUE(round.run(kStepsMax)) << "seed " << seed;
    ASSERT_EQ(round.wrong(), 0) << "seed " << seed;
  }
}

TEST(MemoryFabric, BringsEveryMessageInOrderToo) {
  Adversity adversity;
  adversity.reorder = adversity.delay = adversity.refusal = adversity.late_read = 0;
  for (const Scheme scheme : {Scheme::per_message, Scheme::running_count, Scheme::last_chunk}) {
    Round round(3, 50, adversity, scheme);
    ASSERT_TRUE(round.run(kStepsMax));
    EXPECT_EQ(round.wrong(), 0);
  }
}

// Messages that a scheme reads wrong, of those of twenty seeds.
std::int64_t wrong_with(Scheme scheme) {
  std::int64_t wrong = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Adversity adversity;
    adversity.seed = seed;
    Round round(2, 50, adversity, scheme);
    round.run(20'000);
    wrong += round.wrong();
  }
  return wrong;
}

// A running count takes early chunks of later messages for late ones of the first.
TEST(MemoryFabric, FindsARunningCountPerChannel) {
  EXPECT_GT(wrong_with(Scheme::running_count), 100);
}

TEST(MemoryFabric, FindsAnImmediateOnTheLastChunkOnly) {
  EXPECT_GT(wrong_with(Scheme::last_chunk), 100);
}

// The memory of a chunk belongs to the fabric until it says `sent`.
TEST(MemoryFabric, ReadsMemoryLate) {
  Adversity adversity;
  adversity.reorder = adversity.delay = adversity.refusal = 0;
  adversity.late_read = 1024;
  MemoryFabric fabric(2, adversity);
  const auto source = fabric.endpoint(0);
  const auto target = fabric.endpoint(1);
  std::array<std::byte, 8> from{};
  std::array<std::byte, 8> to{};
  ASSERT_TRUE(source->add_region(from.data(), from.size()).ok());
  ASSERT_TRUE(target->add_region(to.data(), to.size()).ok());
  Chunk chunk;
  chunk.peer = 1;
  chunk.from = chunk.to = 0;
  chunk.bytes = 8;
  ASSERT_EQ(source->put(chunk), Posted::yes);
  from[3] = std::byte{9};
  std::array<Event, 1> events;
  ASSERT_EQ(target->poll(events), 1U);
  EXPECT_EQ(to[3], std::byte{9});
}

/// Of memory of a GPU, which here is the host's with all bits turned: only this can use it.
bool copy_turned(int device, std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) to[i] = from[i] ^ std::byte{0xff};
  return device == 5;
}

TEST(MemoryFabric, CopiesMemoryOfGpusAsItIsTold) {
  Adversity adversity;
  adversity.reorder = adversity.delay = adversity.refusal = 0;
  std::array<std::byte, 8> from{};
  std::array<std::byte, 8> to{};
  DeviceRegion region;
  region.base = from.data();
  region.bytes = from.size();
  region.device = 5;
  region.copy = copy_turned;
  MemoryFabric none(2, adversity);
  EXPECT_EQ(none.endpoint(0)->add_device_region(region).status().code(), StatusCode::unavailable);
  adversity.device_memory = true;
  MemoryFabric fabric(2, adversity);
  const auto source = fabric.endpoint(0);
  const auto target = fabric.endpoint(1);
  EXPECT_TRUE(source->traits().device_memory);
  ASSERT_TRUE(source->add_device_region(region).ok());
  ASSERT_TRUE(target->add_region(to.data(), to.size()).ok());
  Chunk chunk;
  chunk.peer = 1;
  chunk.from = chunk.to = 0;
  chunk.from_offset = 2;
  chunk.bytes = 4;
  from[3] = std::byte{9};
  ASSERT_EQ(source->put(chunk), Posted::yes);
  std::array<Event, 1> events;
  ASSERT_EQ(target->poll(events), 1U);
  EXPECT_EQ(to[0], std::byte{0xff});
  EXPECT_EQ(to[1], std::byte{0xf6});
  EXPECT_EQ(to[4], std::byte{0});
}

TEST(MemoryFabric, TellsOfALostPeerAndTheOthersGoOn) {
  for (const bool told : {true, false}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      Adversity adversity;
      adversity.seed = seed;
      Round round(3, 30, adversity, Scheme::per_message);
      round.run(static_cast<int>(seed) * 4);
      round.fabric().cut_off(1, told);
      ASSERT_TRUE(round.run(kStepsMax, {1})) << "seed " << seed;
      ASSERT_EQ(round.wrong(), 0) << "seed " << seed;
      if (!told) {
        EXPECT_TRUE(round.talker(0).lost().empty());
      }
      for (int step = 0; told && step < 1000; ++step) {
        round.talker(0).keep_polling();
        round.talker(2).keep_polling();
      }
      if (told) {
        EXPECT_TRUE(round.talker(0).lost().contains(1));
        EXPECT_TRUE(round.talker(2).lost().contains(1));
      }
    }
  }
}

// As those of two processes would be, who would wait for each other in vain.
TEST(MemoryFabric, JoinsNobodyElse) {
  MemoryFabric fabric(2, {});
  MemoryFabric other(2, {});
  const auto own = fabric.endpoint(0);
  const auto peer = fabric.endpoint(1);
  const auto stranger = other.endpoint(1);
  EXPECT_TRUE(own->connect(1, *peer->introduction()).ok());
  const Status status = own->connect(1, *stranger->introduction());
  EXPECT_EQ(status.code(), StatusCode::mismatch);
  EXPECT_NE(status.message().find("rank 1 is not on the network in memory"), std::string::npos)
      << status.to_string();
}

// One thread: the seed decides everything.
TEST(MemoryFabric, RepeatsItselfWithTheSameSeed) {
  const auto steps = [](std::uint64_t seed) {
    Adversity adversity;
    adversity.seed = seed;
    Round round(3, 10, adversity, Scheme::per_message);
    int count = 0;
    while (!round.run(1)) ++count;
    return count;
  };
  EXPECT_EQ(steps(5), steps(5));
  std::set<int> different;
  for (std::uint64_t seed = 0; seed < 20; ++seed) different.insert(steps(seed));
  EXPECT_GT(different.size(), 5U);
}

}  // namespace
}  // namespace sluice::transport
