// SPDX-License-Identifier: MIT
#include "routing/expert_map.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sluice/limits.hpp"

namespace sluice::routing {
namespace {

using Ranks = std::vector<std::int32_t>;

Ranks ranks_of(const ExpertMap& map) {
  return {map.expert_to_rank().begin(), map.expert_to_rank().end()};
}

Ranks owned_by(const ExpertMap& map, int rank) {
  return {map.experts_of(rank).begin(), map.experts_of(rank).end()};
}

TEST(ExpertMap, EvenBlocks) {
  const auto map = ExpertMap::create(6, 3, {});
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(ranks_of(*map), (Ranks{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(map->experts(), 6);
  EXPECT_EQ(map->ranks(), 3);
  EXPECT_EQ(map->max_local_experts(), 2);
}

TEST(ExpertMap, TheFirstRanksOwnOneMore) {
  const auto map = ExpertMap::create(8, 3, {});
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(ranks_of(*map), (Ranks{0, 0, 0, 1, 1, 1, 2, 2}));
  EXPECT_EQ(map->max_local_experts(), 3);
  EXPECT_EQ(map->local_experts(2), 2);
}

TEST(ExpertMap, FewerExpertsThanRanks) {
  const auto map = ExpertMap::create(2, 5, {});
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(ranks_of(*map), (Ranks{0, 1}));
  EXPECT_EQ(map->local_experts(1), 1);
  for (int rank = 2; rank < 5; ++rank) EXPECT_EQ(map->local_experts(rank), 0) << rank;
}

TEST(ExpertMap, AnyPlacement) {
  const Ranks placement = {2, 0, 2, 2, 0};
  const auto map = ExpertMap::create(5, 4, placement);
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(ranks_of(*map), placement);
  EXPECT_EQ(owned_by(*map, 0), (Ranks{1, 4}));
  EXPECT_EQ(owned_by(*map, 1), Ranks{});
  EXPECT_EQ(owned_by(*map, 2), (Ranks{0, 2, 3}));
  EXPECT_EQ(owned_by(*map, 3), Ranks{});
  EXPECT_EQ(map->max_local_experts(), 3);
}

// Local numbers are places in the ascending list of a rank's experts, for any size.
TEST(ExpertMap, LocalNumbersAgreeWithTheLists) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (int experts = 1; experts <= 40; experts += 3) {
      const auto map = ExpertMap::create(experts, ranks, {});
      ASSERT_TRUE(map.ok());
      int seen = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Ranks owned = owned_by(*map, rank);
        for (std::size_t local = 0; local < owned.size(); ++local, ++seen) {
          EXPECT_EQ(map->rank_of(owned[local]), rank);
          EXPECT_EQ(map->local_of(owned[local]), static_cast<int>(local));
        }
        EXPECT_EQ(map->local_experts(rank), experts / ranks + (rank < experts % ranks ? 1 : 0));
      }
      EXPECT_EQ(seen, experts);
    }
  }
}

struct BadMap {
  int experts;
  int ranks;
  Ranks placement;
  std::vector<std::string> words;  // What the message must say: what, expected, seen.
};

TEST(ExpertMap, SaysWhatIsWrong) {
  const std::vector<BadMap> bad = {
      {0, 2, {}, {"experts = 0", "1 to 4096"}},
      {kMaxExperts + 1, 2, {}, {"experts = 4097", "1 to 4096"}},
      {4, 0, {}, {"0 ranks", "1 to 256"}},
      {4, kMaxRanks + 1, {}, {"257 ranks", "1 to 256"}},
      {4, 2, {0, 1, 0}, {"3 entries", "experts = 4"}},
      {3, 2, {0, 2, 0}, {"expert_to_rank[1] = 2", "0 to 1"}},
      {3, 2, {0, 1, -1}, {"expert_to_rank[2] = -1", "0 to 1"}},
  };
  for (const BadMap& one : bad) {
    const auto map = ExpertMap::create(one.experts, one.ranks, one.placement);
    ASSERT_FALSE(map.ok()) << one.words[0];
    EXPECT_EQ(map.status().code(), StatusCode::invalid_argument);
    for (const std::string& word : one.words) {
      EXPECT_NE(map.status().message().find(word), std::string::npos)
          << map.status().message() << " does not say " << word;
    }
  }
}

TEST(ExpertMap, TheLargest) {
  EXPECT_TRUE(ExpertMap::create(kMaxExperts, kMaxRanks, {}).ok());
  EXPECT_TRUE(ExpertMap::create(kMaxExperts, 1, {}).ok());
}

}  // namespace
}  // namespace sluice::routing
