// SPDX-License-Identifier: MIT
//
// Short chunks travel together: over the worst network, with one thread, so that a seed is a schedule.
#include "transport/bundling.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "support/forwarding_endpoint.hpp"
#include "transport/memory_fabric.hpp"
#include "unit/transport/round.hpp"

namespace sluice::transport {
namespace {

BundlingSettings settings_of(std::uint64_t seed) {
  BundlingSettings settings;
  const std::uint32_t longest[] = {0, 100, 700, 16000};
  settings.chunk_bytes_max = longest[seed % 4];
  settings.patience = std::chrono::nanoseconds(seed % 3 == 0 ? 2000 : 0);
  settings.copied_bytes_max = seed % 5 == 0 ? 16000 : 300;
  return settings;
}

/// Ranks of which each bundles as it likes.
class BundlingRound : public Round {
 public:
  BundlingRound(int ranks, int messages, const Adversity& adversity, const Load& load = {})
      : Round(ranks, messages, adversity, Scheme::per_message, load,
              [&](int rank, std::unique_ptr<Endpoint> below) {
                const std::uint64_t seed = adversity.seed + static_cast<std::uint64_t>(rank);
                return BundlingEndpoint::over(std::move(below), rank, ranks, settings_of(seed))
                    .value();
              }) {}
};

TEST(Bundling, BringsEveryMessageWholeWithManySeeds) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Adversity adversity;
    adversity.seed = seed;
    adversity.window = 4 + static_cast<int>(seed % 60);
    adversity.pieces_max = 1 + seed % 4;
    // Many slots fill all places of a pair in both directions.
    Load load;
    load.slots = seed % 2 == 0 ? 3 : 16;
    BundlingRound round(3, 40, adversity, load);
    ASSERT_TRUE(round.run(400'000)) << "seed " << seed;
    ASSERT_EQ(round.wrong(), 0) << "seed " << seed;
    EXPECT_EQ(round.endpoint(0).bytes_put(1), round.talker(0).bytes_sent(1));
  }
}

TEST(Bundling, TellsOfALostPeerAndTheOthersGoOn) {
  for (const bool told : {true, false}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      Adversity adversity;
      adversity.seed = seed;
      adversity.pieces_max = 1 + seed % 4;
      BundlingRound round(3, 30, adversity);
      round.run(static_cast<int>(seed) * 4);
      round.fabric().cut_off(1, told);
      ASSERT_TRUE(round.run(400'000, {1})) << "seed " << seed;
      ASSERT_EQ(round.wrong(), 0) << "seed " << seed;
    }
  }
}

/// Counts what an endpoint is given, and refuses what it is to.
class Counting final : public support::ForwardingEndpoint {
 public:
  Counting(std::unique_ptr<Endpoint> below, int& puts, int& refusals)
      : ForwardingEndpoint(std::move(below)), puts_(puts), refusals_(refusals) {}

  Posted put(const Chunk& chunk) override {
    if (refusals_ > 0) {
      --refusals_;
      return Posted::busy;
    }
    const Posted posted = ForwardingEndpoint::put(chunk);
    puts_ += posted == Posted::yes ? 1 : 0;
    return posted;
  }

 private:
  int& puts_;
  int& refusals_;
};

/// Two ranks, one of which puts.
struct Pair {
  explicit Pair(const BundlingSettings& settings, const Adversity& adversity = calm())
      : fabric(2, adversity) {
    for (int rank = 0; rank < 2; ++rank) {
      ends.push_back(
          BundlingEndpoint::over(std::make_unique<Counting>(fabric.endpoint(rank), puts, refusals),
                                 rank, 2, settings)
              .value());
      auto& own = memory[static_cast<std::size_t>(rank)];
      own.assign(100'000, std::byte{0});
      EXPECT_TRUE(ends.back()->add_region(own.data(), own.size()).ok());
    }
    for (std::size_t i = 0; i < memory[0].size(); ++i) memory[0][i] = static_cast<std::byte>(i * 7);
  }
  static Adversity calm() {
    Adversity adversity;
    adversity.reorder = adversity.delay = adversity.refusal = 0;
    return adversity;
  }
  static Chunk chunk(std::uint64_t offset, std::uint32_t bytes, std::uint32_t immediate) {
    return {1, 0, offset, 0, offset, bytes, immediate, immediate};
  }
  std::vector<std::uint32_t> arrived() {
    std::vector<std::uint32_t> all;
    std::array<Event, 16> events;
    for (int turn = 0; turn < 20; ++turn) {
      (void)ends[0]->poll(events);
      const std::size_t count = ends[1]->poll(events);
      for (std::size_t i = 0; i < count; ++i) {
        if (events[i].kind == Event::Kind::arrived) all.push_back(events[i].immediate);
      }
    }
    return all;
  }

  int puts = 0;
  int refusals = 0;
  MemoryFabric fabric;
  std::array<std::vector<std::byte>, 2> memory;
  std::vector<std::unique_ptr<Endpoint>> ends;
};

TEST(Bundling, WhatIsPutBetweenTwoPollsIsOnePut) {
  Pair pair({16000, std::chrono::nanoseconds(0)});
  for (std::uint32_t i = 0; i < 5; ++i) {
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(i * 3000, 1 + i * 600, i)), Posted::yes);
  }
  ASSERT_EQ(pair.ends[0]->put(Pair::chunk(0, 0, 5)), Posted::yes);
  EXPECT_EQ(pair.puts, 0);
  EXPECT_EQ(pair.arrived(), (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(pair.puts, 1);
  for (std::uint32_t i = 0; i < 5; ++i) {
    const std::size_t at = i * 3000;
    EXPECT_EQ(std::memcmp(&pair.memory[0][at], &pair.memory[1][at], 1 + i * 600), 0);
    EXPECT_EQ(pair.memory[1][at + 1 + i * 600], std::byte{0});
  }
}

bool copy_of_gpu(int /*device*/, std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  return true;
}

// Nobody but the network touches it: such chunks travel alone, from and to GPUs, and others still together.
TEST(Bundling, MemoryOfGpusIsNotTouched) {
  for (std::size_t most = 1; most <= 2; ++most) {
    Adversity adversity = Pair::calm();
    adversity.device_memory = true;
    adversity.pieces_max = most;
    Pair pair({16000, std::chrono::nanoseconds(0)}, adversity);
    std::array<std::vector<std::byte>, 2> rows{std::vector<std::byte>(4096, std::byte{5}),
                                               std::vector<std::byte>(4096)};
    for (std::size_t rank = 0; rank < 2; ++rank) {
      DeviceRegion region;
      region.base = rows[rank].data();
      region.bytes = rows[rank].size();
      region.copy = copy_of_gpu;
      // The second rank has but one: what lies in a GPU here may lie in the host there.
      if (rank == 0) {
        EXPECT_EQ(*pair.ends[rank]->add_device_region(region), 1);
      } else {
        EXPECT_EQ(*pair.ends[rank]->add_region(region.base, region.bytes), 1);
      }
      EXPECT_EQ(*pair.ends[rank]->add_device_region(region), 2);
    }
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(
          pair.ends[static_cast<std::size_t>(rank)]
              ->connect(1 - rank, *pair.ends[static_cast<std::size_t>(1 - rank)]->introduction())
              .ok());
    }
    // From a GPU, to a GPU, both, and from the host to the host, twice.
    const Chunk chunks[] = {{1, 1, 0, 1, 0, 100, 0, 0},
                            {1, 0, 0, 2, 200, 100, 1, 1},
                            {1, 2, 300, 2, 400, 100, 2, 2},
                            {1, 0, 500, 0, 500, 100, 3, 3},
                            {1, 0, 600, 0, 600, 100, 4, 4}};
    for (const Chunk& chunk : chunks) ASSERT_EQ(pair.ends[0]->put(chunk), Posted::yes);
    EXPECT_EQ(pair.puts, 3);
    std::vector<std::uint32_t> arrived = pair.arrived();
    std::sort(arrived.begin(), arrived.end());
    EXPECT_EQ(arrived, (std::vector<std::uint32_t>{0, 1, 2, 3, 4}));
    EXPECT_EQ(pair.puts, 4);
    EXPECT_EQ(rows[1][99], std::byte{5});
    EXPECT_EQ(std::memcmp(&rows[1][200], &pair.memory[0][0], 100), 0);
    EXPECT_EQ(rows[1][499], std::byte{5});
    EXPECT_EQ(std::memcmp(&pair.memory[1][500], &pair.memory[0][500], 200), 0);
    // From a GPU, beside a bundle.
    pair.puts = 0;
    ASSERT_EQ(pair.ends[0]->put({1, 0, 0, 0, 700, 100, 5, 5}), Posted::yes);
    ASSERT_EQ(pair.ends[0]->put({1, 1, 0, 1, 0, 2000, 6, 6}), Posted::yes);
    EXPECT_EQ(pair.puts, 1);
    EXPECT_EQ(pair.arrived().size(), 2U);
    EXPECT_EQ(pair.puts, 2);
  }
}

Adversity calm_with_pieces(std::size_t most) {
  Adversity adversity = Pair::calm();
  adversity.pieces_max = most;
  return adversity;
}

// What is too long for a bundle takes with it what was put before, at once; without that it goes by itself.
TEST(Bundling, ALongOneTakesABundleAlong) {
  for (std::size_t most = 1; most <= 2; ++most) {
    Pair pair({1000, std::chrono::nanoseconds(0)}, calm_with_pieces(most));
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(0, 100, 0)), Posted::yes);
    EXPECT_EQ(pair.puts, 0);
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(1000, 50'000, 1)), Posted::yes);
    EXPECT_EQ(pair.puts, 1);
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(60'000, 30'000, 2)), Posted::yes);
    EXPECT_EQ(pair.puts, 2);
    std::vector<std::uint32_t> arrived = pair.arrived();
    std::sort(arrived.begin(), arrived.end());
    EXPECT_EQ(arrived, (std::vector<std::uint32_t>{0, 1, 2}));
    EXPECT_EQ(pair.puts, most == 1 ? 3 : 2);
    EXPECT_EQ(std::memcmp(&pair.memory[0][0], &pair.memory[1][0], 100), 0);
    EXPECT_EQ(std::memcmp(&pair.memory[0][1000], &pair.memory[1][1000], 50'000), 0);
    EXPECT_EQ(std::memcmp(&pair.memory[0][60'000], &pair.memory[1][60'000], 30'000), 0);
    for (const std::size_t untouched : {100U, 999U, 51'000U, 59'999U, 90'000U}) {
      EXPECT_EQ(pair.memory[1][untouched], std::byte{0}) << untouched;
    }
    EXPECT_EQ(pair.ends[0]->bytes_put(1), 80'100U);
  }
}

// So does a shorter one, which would fit; if there is none, one is begun for it.
TEST(Bundling, OneThatWouldFitIsNotCopiedIntoABundleThatItFinds) {
  for (std::size_t most = 1; most <= 2; ++most) {
    Pair pair({16000, std::chrono::nanoseconds(0), 2000}, calm_with_pieces(most));
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(0, 2001, 0)), Posted::yes);  // Begins one.
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(3000, 2000, 1)), Posted::yes);
    EXPECT_EQ(pair.puts, 0);
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(6000, 2001, 2)), Posted::yes);
    EXPECT_EQ(pair.puts, most == 1 ? 0 : 1);
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(9000, 2001, 3)), Posted::yes);  // Begins the next one.
    EXPECT_EQ(pair.puts, most == 1 ? 0 : 1);
    EXPECT_EQ(pair.arrived(), (std::vector<std::uint32_t>{0, 1, 2, 3}));
    EXPECT_EQ(pair.puts, static_cast<int>(most));
    for (const std::uint32_t i : {0U, 1U, 2U, 3U}) {
      const std::size_t at = i * 3000;
      const std::size_t bytes = i == 1 ? 2000 : 2001;
      EXPECT_EQ(std::memcmp(&pair.memory[0][at], &pair.memory[1][at], bytes), 0) << i;
      EXPECT_EQ(pair.memory[1][at + bytes], std::byte{0}) << i;
    }
    EXPECT_EQ(pair.ends[0]->bytes_put(1), 8003U);
  }
}

// Heads of many tokens, say, before their rows.
TEST(Bundling, OneThatIsFollowedByALongerOneLeavesItsBundleToIt) {
  for (const bool more : {false, true}) {
    Pair pair({16000, std::chrono::nanoseconds(0), 2000}, calm_with_pieces(2));
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(0, 100, 0)), Posted::yes);
    Chunk middle = Pair::chunk(1000, 5000, 1);
    middle.more = more;
    ASSERT_EQ(pair.ends[0]->put(middle), Posted::yes);
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(10'000, 50'000, 2)), Posted::yes);
    EXPECT_EQ(pair.puts, more ? 1 : 2);
    EXPECT_EQ(pair.arrived(), (std::vector<std::uint32_t>{0, 1, 2}));
    EXPECT_EQ(std::memcmp(&pair.memory[0][1000], &pair.memory[1][1000], 5000), 0);
    EXPECT_EQ(std::memcmp(&pair.memory[0][10'000], &pair.memory[1][10'000], 50'000), 0);
  }
}

// One that is too long for a bundle, and not by much, waits for the next one, if the network takes all three at once.
TEST(Bundling, OneThatGoesAlongWaitsForTheOneBehindIt) {
  for (std::size_t most = 2; most <= 4; ++most) {
    Pair pair({1000, std::chrono::hours(1), 2000, 5000}, calm_with_pieces(most));
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(0, 100, 0)), Posted::yes);
    Chunk middle = Pair::chunk(1000, 5000, 1);
    middle.more = true;
    ASSERT_EQ(pair.ends[0]->put(middle), Posted::yes);
    EXPECT_EQ(pair.puts, most == 2 ? 1 : 0);
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(10'000, 50'000, 2)), Posted::yes);
    EXPECT_EQ(pair.puts, most == 2 ? 2 : 1);
    EXPECT_EQ(pair.arrived(), (std::vector<std::uint32_t>{0, 1, 2}));
    EXPECT_EQ(std::memcmp(&pair.memory[0][1000], &pair.memory[1][1000], 5000), 0);
    EXPECT_EQ(std::memcmp(&pair.memory[0][10'000], &pair.memory[1][10'000], 50'000), 0);
    EXPECT_EQ(pair.ends[0]->bytes_put(1), 55'100U);
    // A longer one does not wait.
    pair.puts = 0;
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(0, 100, 3)), Posted::yes);
    middle.bytes = 5001;
    ASSERT_EQ(pair.ends[0]->put(middle), Posted::yes);
    EXPECT_EQ(pair.puts, 1);
  }
}

// If none comes, it waits no longer than until the next poll; and as many wait as the network takes.
TEST(Bundling, WhatWaitsForAnotherGoesWithoutIt) {
  Pair pair({1000, std::chrono::hours(1), 2000, 5000}, calm_with_pieces(3));
  Chunk one = Pair::chunk(1000, 5000, 1);
  one.more = true;
  ASSERT_EQ(pair.ends[0]->put(Pair::chunk(0, 100, 0)), Posted::yes);
  ASSERT_EQ(pair.ends[0]->put(one), Posted::yes);
  EXPECT_EQ(pair.puts, 0);
  EXPECT_EQ(pair.arrived(), (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(pair.puts, 1);
  pair.puts = 0;
  ASSERT_EQ(pair.ends[0]->put(Pair::chunk(0, 100, 2)), Posted::yes);
  for (const std::uint32_t immediate : {3U, 4U}) {
    one.immediate = immediate;
    EXPECT_EQ(pair.puts, 0);
    ASSERT_EQ(pair.ends[0]->put(one), Posted::yes);
  }
  EXPECT_EQ(pair.puts, 1);
  EXPECT_EQ(pair.arrived(), (std::vector<std::uint32_t>{2, 3, 4}));
  EXPECT_EQ(pair.puts, 1);
}

// Signs that wait for company find it.
TEST(Bundling, ALongOneTakesSignsAlong) {
  Pair pair({1000, std::chrono::hours(1)}, calm_with_pieces(2));
  ASSERT_EQ(pair.ends[0]->put(Pair::chunk(0, 0, 0)), Posted::yes);
  EXPECT_EQ(pair.arrived(), (std::vector<std::uint32_t>{}));
  ASSERT_EQ(pair.ends[0]->put(Pair::chunk(0, 2000, 1)), Posted::yes);
  EXPECT_EQ(pair.arrived(), (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(pair.puts, 1);
}

// A bundle and a chunk may be more than the network takes at once (which the one in memory would say), and a bundle may be full.
TEST(Bundling, WhatDoesNotFitBesideABundleGoesByItself) {
  Adversity narrow = calm_with_pieces(2);
  narrow.put_bytes_max = BundlingEndpoint::kBundleBytes + 3000;
  for (const std::uint32_t bytes : {3000U, 3001U, 19'384U}) {
    Pair pair({1000, std::chrono::nanoseconds(0)}, narrow);
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(0, 100, 0)), Posted::yes);
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(2000, bytes, 1)), Posted::yes);
    std::vector<std::uint32_t> arrived = pair.arrived();
    std::sort(arrived.begin(), arrived.end());
    EXPECT_EQ(arrived, (std::vector<std::uint32_t>{0, 1}));
    EXPECT_EQ(pair.puts, bytes == 3000 ? 1 : 2) << bytes;
  }
  Pair pair({16'384 - 48, std::chrono::nanoseconds(0)}, calm_with_pieces(2));
  ASSERT_EQ(pair.ends[0]->put(Pair::chunk(0, 16'384 - 48, 0)), Posted::yes);
  ASSERT_EQ(pair.ends[0]->put(Pair::chunk(20'000, 20'000, 1)), Posted::yes);
  EXPECT_EQ(pair.arrived().size(), 2U);
  EXPECT_EQ(pair.puts, 2);
  EXPECT_EQ(std::memcmp(pair.memory[0].data(), pair.memory[1].data(), 16'384 - 48), 0);
  EXPECT_EQ(std::memcmp(&pair.memory[0][20'000], &pair.memory[1][20'000], 20'000), 0);
}

// Its memory may change only then; and never is for one that is lost.
TEST(Bundling, WhatGoesAlongIsSentWithItsBundle) {
  for (const bool lost : {false, true}) {
    Adversity adversity = calm_with_pieces(3);
    adversity.late_read = 1024;
    Pair pair({1000, std::chrono::nanoseconds(0)}, adversity);
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(0, 100, 7)), Posted::yes);
    Chunk first = Pair::chunk(4000, 1500, 9);
    first.more = true;  // It waits for the next one.
    ASSERT_EQ(pair.ends[0]->put(first), Posted::yes);
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(2000, 2000, 8)), Posted::yes);
    pair.memory[0][0] = pair.memory[0][2000] = pair.memory[0][4000] = std::byte{99};
    if (lost) pair.ends[0]->abandon(1);
    std::vector<std::uint64_t> sent;
    std::array<Event, 16> events;
    for (int turn = 0; turn < 10; ++turn) {
      const std::size_t count = pair.ends[0]->poll(events);
      for (std::size_t i = 0; i < count; ++i) sent.push_back(events[i].context);
      if (!sent.empty() && sent.back() == 8) pair.memory[0][2000] = std::byte{98};
    }
    EXPECT_EQ(sent, lost ? std::vector<std::uint64_t>{} : (std::vector<std::uint64_t>{7, 9, 8}));
    if (lost) continue;
    EXPECT_EQ(pair.arrived(), (std::vector<std::uint32_t>{7, 9, 8}));
    EXPECT_EQ(pair.memory[1][4000], std::byte{99});
    EXPECT_EQ(pair.memory[1][0], std::byte{0});      // It was copied.
    EXPECT_EQ(pair.memory[1][2000], std::byte{99});  // It was not, and was read before `sent`.
  }
}

// Neither has gone then, and the bundle is as it was.
TEST(Bundling, ALongOneThatIsRefusedComesAgain) {
  for (const bool held : {false, true}) {  // Another one waits for it.
    Pair pair({1000, std::chrono::nanoseconds(0)}, calm_with_pieces(3));
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(0, 100, 0)), Posted::yes);
    Chunk first = Pair::chunk(10'000, 3000, 3);
    first.more = true;
    if (held) {
      ASSERT_EQ(pair.ends[0]->put(first), Posted::yes);
    }
    pair.refusals = 2;
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(pair.ends[0]->put(Pair::chunk(2000, 2000, 1)), Posted::busy);
    }
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(5000, 100, 2)), Posted::yes);
    ASSERT_EQ(pair.ends[0]->put(Pair::chunk(2000, 2000, 1)), Posted::yes);
    EXPECT_EQ(pair.arrived(), held ? (std::vector<std::uint32_t>{0, 3, 2, 1})
                                   : (std::vector<std::uint32_t>{0, 2, 1}));
    EXPECT_EQ(pair.puts, 1);
    EXPECT_EQ(pair.ends[0]->bytes_put(1), held ? 5200U : 2200U);
    EXPECT_EQ(std::memcmp(&pair.memory[0][2000], &pair.memory[1][2000], 2000), 0);
    EXPECT_EQ(pair.memory[1][4000], std::byte{0});
  }
}

TEST(Bundling, AnIntroductionThatIsCutShort) {
  Pair pair({16000, std::chrono::nanoseconds(0)});
  const std::string whole = *pair.ends[1]->introduction();
  for (const std::string& wrong :
       {whole.substr(0, 3), whole.substr(0, whole.size() - 1), whole + "x"}) {
    EXPECT_EQ(pair.ends[0]->connect(1, wrong).code(), StatusCode::mismatch);
  }
}

TEST(Bundling, LongChunksGoByThemselves) {
  Pair pair({1000, std::chrono::nanoseconds(0)});
  ASSERT_EQ(pair.ends[0]->put(Pair::chunk(0, 1001, 0)), Posted::yes);
  EXPECT_EQ(pair.puts, 1);
  ASSERT_EQ(pair.ends[0]->put(Pair::chunk(2000, 1000, 1)), Posted::yes);
  EXPECT_EQ(pair.arrived(), (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(pair.puts, 2);
  EXPECT_EQ(std::memcmp(&pair.memory[0][0], &pair.memory[1][0], 1001), 0);
  EXPECT_EQ(std::memcmp(&pair.memory[0][2000], &pair.memory[1][2000], 1000), 0);
}

// The last signs of a rank that ends.
TEST(Bundling, WhatWaitsIsPutByAMark) {
  Pair pair({16000, std::chrono::hours(1)});
  ASSERT_EQ(pair.ends[0]->put(Pair::chunk(0, 0, 3)), Posted::yes);
  ASSERT_EQ(pair.ends[0]->put(Pair::chunk(0, 0, 4)), Posted::yes);
  EXPECT_TRUE(pair.arrived().empty());
  pair.refusals = 2;
  EXPECT_FALSE(pair.ends[0]->mark(1).has_value());
  EXPECT_FALSE(pair.ends[0]->mark(1).has_value());
  EXPECT_EQ(pair.puts, 0);
  EXPECT_TRUE(pair.ends[0]->mark(1).has_value());
  EXPECT_EQ(pair.puts, 1);
  EXPECT_TRUE(pair.ends[0]->mark(1).has_value());
  EXPECT_EQ(pair.puts, 1);
  EXPECT_EQ(pair.arrived(), (std::vector<std::uint32_t>{3, 4}));
}

TEST(Bundling, WhoIsGoneIsNotWaitedForByAMark) {
  Pair pair({16000, std::chrono::hours(1)});
  ASSERT_EQ(pair.ends[0]->put(Pair::chunk(0, 0, 3)), Posted::yes);
  pair.ends[0]->abandon(1);
  pair.refusals = 1;
  EXPECT_TRUE(pair.ends[0]->mark(1).has_value());
  EXPECT_EQ(pair.puts, 0);
}

TEST(Bundling, TooManyRanks) {
  MemoryFabric fabric(1, {});
  const auto endpoint = BundlingEndpoint::over(fabric.endpoint(0), 0, 1025, {});
  ASSERT_FALSE(endpoint.ok());
  EXPECT_EQ(endpoint.status().message(), "between nodes: 1025 ranks, expected at most 1024");
}

}  // namespace
}  // namespace sluice::transport
