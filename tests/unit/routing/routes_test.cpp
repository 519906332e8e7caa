// SPDX-License-Identifier: MIT
#include "routing/routes.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace sluice::routing {
namespace {

using Ids = std::vector<std::int32_t>;
using Weights = std::vector<float>;

constexpr int kExperts = 10;

struct Normalised {
  Ids ids;
  Weights weights;
  std::int64_t bad = 0;
};

Normalised normalised(const ConstTensorView& ids, const ConstTensorView& weights,
                      const ConstTensorView& mask) {
  Normalised out;
  const auto routes = static_cast<std::size_t>(ids.shape[0] * ids.shape[1]);
  out.ids.resize(routes, -7);
  out.weights.resize(routes, -7.0F);
  out.bad = normalise(ids, weights, mask, kExperts, out.ids.data(), out.weights.data());
  return out;
}

TEST(Normalise, KeepsWhatIsLegal) {
  const Ids ids = {0, 9, -1, 3, 3, 3};
  const Weights weights = {0.5F, 1.5F, 2.0F, 0.0F, -1.0F, 4.0F};
  const Normalised out =
      normalised({ids.data(), DType::i32, 2, 3}, {weights.data(), DType::f32, 2, 3}, {});
  EXPECT_EQ(out.ids, ids);
  EXPECT_EQ(out.weights, weights);
  EXPECT_EQ(out.bad, 0);
}

TEST(Normalise, WithoutWeightsAllAreOne) {
  const Ids ids = {4, -1};
  EXPECT_EQ(normalised({ids.data(), DType::i32, 1, 2}, {}, {}).weights, (Weights{1.0F, 1.0F}));
}

TEST(Normalise, BadIdsBecomeNoneAndAreCounted) {
  const Ids ids = {10, -2, 9, -1, 2147483647, -2147483647 - 1};
  const Normalised out = normalised({ids.data(), DType::i32, 3, 2}, {}, {});
  EXPECT_EQ(out.ids, (Ids{-1, -1, 9, -1, -1, -1}));
  EXPECT_EQ(out.bad, 4);
}

// Ids that would be legal if their high half were cut off are bad.
TEST(Normalise, Ids64BitsWide) {
  const std::vector<std::int64_t> ids = {
      3, (std::int64_t{1} << 32) + 3, -1, -(std::int64_t{1} << 32), std::int64_t{1} << 62, 9};
  const Normalised out = normalised({ids.data(), DType::i64, 2, 3}, {}, {});
  EXPECT_EQ(out.ids, (Ids{3, -1, -1, -1, -1, 9}));
  EXPECT_EQ(out.bad, 3);
}

TEST(Normalise, AMaskedIdIsNotLookedAt) {
  const Ids ids = {77, 1, 2, 88};
  const std::vector<std::uint8_t> per_route = {0, 1, 255, 0};
  Normalised out =
      normalised({ids.data(), DType::i32, 2, 2}, {}, {per_route.data(), DType::u8, 2, 2});
  EXPECT_EQ(out.ids, (Ids{-1, 1, 2, -1}));
  EXPECT_EQ(out.bad, 0);
  const std::vector<std::uint8_t> per_token = {0, 1};
  out = normalised({ids.data(), DType::i32, 2, 2}, {}, {per_token.data(), DType::u8, 2});
  EXPECT_EQ(out.ids, (Ids{-1, -1, 2, -1}));
  EXPECT_EQ(out.bad, 1);
}

// Every input with gaps between rows and between elements, i64, and transposed.
TEST(Normalise, AnyStrides) {
  constexpr std::int64_t kTokens = 3;
  constexpr std::int64_t kTopK = 2;
  std::vector<std::int64_t> ids(64, 99);
  Weights weights(64, 99.0F);
  std::vector<std::uint8_t> mask(64, 0);
  ConstTensorView ids_view(ids.data(), DType::i64, kTokens, kTopK);
  ids_view.strides = {7, 3, 0};
  ConstTensorView weights_view(weights.data(), DType::f32, kTokens, kTopK);
  weights_view.strides = {1, 5, 0};
  ConstTensorView mask_view(mask.data(), DType::u8, kTokens, kTopK);
  mask_view.strides = {11, 2, 0};
  Ids expected_ids;
  Weights expected_weights;
  for (std::int64_t token = 0; token < kTokens; ++token) {
    for (std::int64_t k = 0; k < kTopK; ++k) {
      const std::int64_t id = token * kTopK + k;
      const bool used = id != 3;
      ids[static_cast<std::size_t>(token * 7 + k * 3)] = id;
      weights[static_cast<std::size_t>(token + k * 5)] = static_cast<float>(id) * 0.25F;
      mask[static_cast<std::size_t>(token * 11 + k * 2)] = used ? 1 : 0;
      expected_ids.push_back(used ? static_cast<std::int32_t>(id) : -1);
      expected_weights.push_back(static_cast<float>(id) * 0.25F);
    }
  }
  const Normalised out = normalised(ids_view, weights_view, mask_view);
  EXPECT_EQ(out.ids, expected_ids);
  EXPECT_EQ(out.weights, expected_weights);
  EXPECT_EQ(out.bad, 0);

  std::vector<std::uint8_t> token_mask = {1, 9, 0, 9, 1};
  ConstTensorView token_view(token_mask.data(), DType::u8, kTokens);
  token_view.strides = {2, 0, 0};
  EXPECT_EQ(normalised(ids_view, {}, token_view).ids, (Ids{0, 1, -1, -1, 4, 5}));
}

TEST(Normalise, NoTokens) {
  EXPECT_EQ(normalised({nullptr, DType::i32, 0, 4}, {}, {}).bad, 0);
}

/// Random routings with duplicates and -1.
struct Case {
  int ranks;
  int top_k;
  int tokens;
  ExpertMap map;
  Ids ids;
  Weights weights;

  const std::int32_t* of(int token) const { return ids.data() + token * top_k; }
};

Case draw_case(std::mt19937& random) {
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<unsigned>(bound));
  };
  Case one;
  one.ranks = 1 + below(6);
  one.top_k = below(8) == 0 ? kMaxTopk : 1 + below(9);
  one.tokens = below(7);
  const int experts = 1 + below(12);
  std::vector<std::int32_t> placement;
  if (below(2) == 0) {
    for (int expert = 0; expert < experts; ++expert) placement.push_back(below(one.ranks));
  }
  one.map = ExpertMap::create(experts, one.ranks, placement).value();
  for (int route = 0; route < one.tokens * one.top_k; ++route) {
    one.ids.push_back(below(4) == 0 ? -1 : below(experts));
    one.weights.push_back(static_cast<float>(below(1000)) * 1e-3F - 0.2F);
  }
  return one;
}

constexpr int kCases = 2000;

TEST(Destinations, MatchASetOfRanks) {
  std::mt19937 random(1);
  for (int i = 0; i < kCases; ++i) {
    const Case one = draw_case(random);
    for (int token = 0; token < one.tokens; ++token) {
      std::map<int, std::uint32_t> expected;  // Ranks ascending.
      for (int k = 0; k < one.top_k; ++k) {
        const std::int32_t id = one.of(token)[k];
        if (id >= 0) expected[one.map.rank_of(id)] |= std::uint32_t{1} << k;
      }
      std::map<int, std::uint32_t> seen;
      int last = -1;
      for (const Destination& to : Destinations(one.of(token), one.top_k, one.map)) {
        EXPECT_GT(to.rank, last);
        last = to.rank;
        seen[to.rank] = to.mask;
      }
      ASSERT_EQ(seen, expected) << "case " << i;
    }
  }
}

TEST(DistinctRoutes, AreTheLowestOfTheirExpert) {
  std::mt19937 random(2);
  for (int i = 0; i < kCases; ++i) {
    const Case one = draw_case(random);
    for (int token = 0; token < one.tokens; ++token) {
      const std::int32_t* ids = one.of(token);
      for (const Destination& to : Destinations(ids, one.top_k, one.map)) {
        std::uint32_t expected = 0;
        std::set<std::int32_t> experts;
        for (int k = 0; k < one.top_k; ++k) {
          if (((to.mask >> k) & 1U) == 0) continue;
          if (experts.insert(ids[k]).second) expected |= std::uint32_t{1} << k;
        }
        ASSERT_EQ(distinct_routes(ids, to.mask), expected) << "case " << i;
      }
    }
  }
}

TEST(MergedWeight, IsTheSumOverDuplicatesInOrder) {
  std::mt19937 random(3);
  for (int i = 0; i < kCases; ++i) {
    const Case one = draw_case(random);
    for (int token = 0; token < one.tokens; ++token) {
      const std::int32_t* ids = one.of(token);
      const float* weights = one.weights.data() + token * one.top_k;
      for (const Destination& to : Destinations(ids, one.top_k, one.map)) {
        for (int k = 0; k < one.top_k; ++k) {
          if (((distinct_routes(ids, to.mask) >> k) & 1U) == 0) continue;
          int duplicates = 0;
          float sum = 0.0F;
          for (int other = k; other < one.top_k; ++other) {
            if (ids[other] != ids[k]) continue;
            sum += weights[other];
            ++duplicates;
          }
          const float expected = duplicates == 1 ? weights[k] : sum;
          ASSERT_EQ(std::bit_cast<std::uint32_t>(merged_weight(ids, weights, to.mask, k)),
                    std::bit_cast<std::uint32_t>(expected))
              << "case " << i;
        }
      }
    }
  }
}

// One route keeps its own bits: +0 + -0 would be +0.
TEST(MergedWeight, ASingleNegativeZeroStays) {
  const Ids ids = {5, 2};
  const Weights weights = {1.0F, -0.0F};
  EXPECT_TRUE(std::signbit(merged_weight(ids.data(), weights.data(), 0b11, 1)));
}

TEST(Membership, MatchesTheDestinations) {
  std::mt19937 random(4);
  for (int i = 0; i < kCases; ++i) {
    const Case one = draw_case(random);
    const auto ranks = static_cast<std::size_t>(one.ranks);
    std::vector<std::uint8_t> seen(static_cast<std::size_t>(one.tokens) * ranks, 9);
    membership({one.ids.data(), one.weights.data(), one.tokens, one.top_k}, one.map, seen.data());
    std::vector<std::uint8_t> expected(seen.size(), 0);
    for (int token = 0; token < one.tokens; ++token) {
      for (int k = 0; k < one.top_k; ++k) {
        const std::int32_t id = one.of(token)[k];
        if (id < 0) continue;
        expected[static_cast<std::size_t>(token) * ranks +
                 static_cast<std::size_t>(one.map.rank_of(id))] = 1;
      }
    }
    ASSERT_EQ(seen, expected) << "case " << i;
  }
}

TEST(CountSends, DistinctPerExpertRankAndNode) {
  std::mt19937 random(5);
  for (int i = 0; i < kCases; ++i) {
    const Case one = draw_case(random);
    const int nodes = 1 + i % 3;
    std::vector<std::int32_t> rank_to_node;
    for (int rank = 0; rank < one.ranks; ++rank) rank_to_node.push_back((rank * 7 + i) % nodes);
    std::vector<std::set<int>> experts(static_cast<std::size_t>(one.map.experts()));
    std::vector<std::set<int>> ranks(static_cast<std::size_t>(one.ranks));
    std::vector<std::set<int>> per_node(static_cast<std::size_t>(nodes));
    for (int token = 0; token < one.tokens; ++token) {
      for (int k = 0; k < one.top_k; ++k) {
        const std::int32_t id = one.of(token)[k];
        if (id < 0) continue;
        const auto rank = static_cast<std::size_t>(one.map.rank_of(id));
        experts[static_cast<std::size_t>(id)].insert(token);
        ranks[rank].insert(token);
        per_node[static_cast<std::size_t>(rank_to_node[rank])].insert(token);
      }
    }
    const auto sizes = [](const std::vector<std::set<int>>& sets) {
      Ids counts;
      for (const auto& set : sets) counts.push_back(static_cast<std::int32_t>(set.size()));
      return counts;
    };
    Ids seen_experts(experts.size(), 9);
    Ids seen_ranks(ranks.size(), 9);
    Ids seen_nodes(per_node.size(), 9);
    count_sends({one.ids.data(), one.weights.data(), one.tokens, one.top_k}, one.map, rank_to_node,
                {seen_experts, seen_ranks, seen_nodes});
    ASSERT_EQ(seen_experts, sizes(experts)) << "case " << i;
    ASSERT_EQ(seen_ranks, sizes(ranks)) << "case " << i;
    ASSERT_EQ(seen_nodes, sizes(per_node)) << "case " << i;
  }
}

}  // namespace
}  // namespace sluice::routing
