// SPDX-License-Identifier: MIT
#include "placement.hpp"

#include <gtest/gtest.h>

#include "distribution.hpp"
#include "row_space.hpp"

namespace sluice::bench {
namespace {

/// Two ranks, four experts, two tokens of two routes each: small enough to do by hand.
Case small_case(Layout layout) {
  Case bench_case;
  bench_case.ranks = 2;
  bench_case.tokens = 2;
  bench_case.hidden = 16;
  bench_case.top_k = 2;
  bench_case.experts = 4;
  bench_case.layout = layout;
  return bench_case;
}

//                               rank 0        rank 1
//                               t0    t1      t0    t1
const Routing kRouting{{3, 0, 1, 0, 0, 1, 2, 3}, std::vector<float>(8, 0.5F)};

using Rows = std::vector<std::int64_t>;

TEST(Placement, RankMajor) {
  const Placement placement = Placement::make(small_case(Layout::rank_major), kRouting);
  EXPECT_EQ(placement.records, (Rows{3, 2}));
  EXPECT_EQ(placement.row, (Rows{0, 0, 1, 1, 2, 2, 1, 1}));
}

TEST(Placement, ExpertMajor) {
  const Placement placement = Placement::make(small_case(Layout::expert_major), kRouting);
  EXPECT_EQ(placement.expert_counts, (std::vector<std::int32_t>{3, 2, 1, 2}));
  EXPECT_EQ(placement.expert_rows, (Rows{5, 3}));
  EXPECT_EQ(placement.row, (Rows{1, 0, 3, 1, 2, 4, 0, 2}));
}

// Rank 0 has one token, rank 1 none.
TEST(Placement, OfRanksWithFewerTokens) {
  Case bench_case = small_case(Layout::expert_major);
  bench_case.rank_tokens = {1, 0};
  ASSERT_TRUE(bench_case.settle().ok());
  EXPECT_EQ(bench_case.tokens, 1);
  const Routing routing = make_routing(bench_case, 0);
  ASSERT_EQ(routing.ids.size(), 4U);
  EXPECT_GE(routing.ids[0], 0);
  EXPECT_EQ(routing.ids[2], -1);
  EXPECT_EQ(routing.ids[3], -1);
  const Placement placement = Placement::make(bench_case, routing);
  EXPECT_EQ(placement.expert_rows[0] + placement.expert_rows[1], 2);
  bench_case.rank_tokens = {1};
  EXPECT_FALSE(bench_case.settle().ok());
}

TEST(Placement, ExpertSlabAndItsOverflow) {
  Case bench_case = small_case(Layout::expert_slab);
  const Placement placement = Placement::make(bench_case, kRouting);
  EXPECT_EQ(placement.row, (Rows{4, 0, 4, 1, 2, 5, 0, 5}));
  EXPECT_EQ(placement.overflow_rows, 0);
  bench_case.slab_rows = 1;
  EXPECT_EQ(Placement::make(bench_case, kRouting).overflow_rows, 4);
}

TEST(Pool, LargeTensorsOverlapAndSmallOnesDoNot) {
  const Pool small = Pool::plan(100, 100, 64, 8);
  EXPECT_EQ(small.stride, 100);
  EXPECT_EQ(small.total_rows(), 800);
  const Pool large = Pool::plan(1 << 20, 1 << 20, 14336, 8);
  EXPECT_LT(large.stride, 1000);
  EXPECT_GT(large.stride, 0);
}

}  // namespace
}  // namespace sluice::bench
