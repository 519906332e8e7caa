// SPDX-License-Identifier: MIT
#include "case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "distribution.hpp"
#include "summary.hpp"

namespace sluice::bench {
namespace {

TEST(RoutingSpec, ReadsWhatItPrints) {
  for (const char* text : {"uniform", "zipf:1.2", "hot:4", "grouped:4", "grouped:2/4"}) {
    const Result<RoutingSpec> spec = RoutingSpec::parse(text);
    ASSERT_TRUE(spec.ok()) << spec.status().message();
    EXPECT_EQ(spec->text(), text);
  }
}

TEST(RoutingSpec, RefusesWhatIsNotOne) {
  for (const char* text : {"", "even", "uniform:1", "zipf", "zipf:", "zipf:x", "zipf:1.2 ",
                           "zipf:-1", "zipf:nan", "hot:0", "hot:1.5", "grouped:-1", "grouped:1/0",
                           "grouped:1/x", "grouped:/4", "grouped:1/2.5", "hot:1/2"}) {
    EXPECT_FALSE(RoutingSpec::parse(text).ok()) << text;
  }
}

TEST(Codec, ReadsWhatItPrints) {
  for (const char* text : {"bf16", "f16", "f32", "fp8", "fp8:pow2", "fp8:ue8m0:64", "fp8:32"}) {
    const Result<Codec> codec = parse_codec(text);
    ASSERT_TRUE(codec.ok()) << codec.status().message();
    EXPECT_EQ(codec_text(*codec), text);
  }
  EXPECT_FALSE(parse_codec("bf16:64").ok());
  EXPECT_FALSE(parse_codec("fp8:e5m2").ok());
}

TEST(Case, SettlesAndRefuses) {
  Case good;
  EXPECT_TRUE(good.settle().ok());
  const auto refused = [](auto&& change) {
    Case bad;
    change(bad);
    return !bad.settle().ok();
  };
  EXPECT_TRUE(refused([](Case& c) { c.hidden = 24; }));
  EXPECT_TRUE(refused([](Case& c) { c.ranks = 0; }));
  EXPECT_TRUE(refused([](Case& c) { c.top_k = c.experts + 1; }));
  EXPECT_TRUE(refused([](Case& c) { c.dispatch_codec.group = 100; }));
  EXPECT_TRUE(refused([](Case& c) { c.iterations = 0; }));
  EXPECT_TRUE(refused([](Case& c) {
    c.layout = Layout::rank_major;
    c.reduce = Reduce::single;
  }));
  EXPECT_TRUE(refused([](Case& c) {
    c.routing = {Distribution::grouped, 1.0};
    c.experts = 32;  // Groups of 4 cannot give 8 distinct experts.
  }));
}

TEST(Case, UnevenExpertsAreContiguous) {
  Case uneven;
  uneven.ranks = 5;
  uneven.experts = 13;
  int expert = 0;
  for (int rank = 0; rank < uneven.ranks; ++rank) {
    EXPECT_EQ(uneven.first_expert(rank), expert);
    EXPECT_EQ(uneven.local_experts(rank), rank < 3 ? 3 : 2);
    for (int l = 0; l < uneven.local_experts(rank); ++l, ++expert) {
      EXPECT_EQ(uneven.rank_of_expert(expert), rank);
    }
  }
  EXPECT_EQ(expert, uneven.experts);
}

class EveryDistribution : public testing::TestWithParam<const char*> {};

TEST_P(EveryDistribution, GivesDistinctValidExpertsAndRepeats) {
  Case bench_case;
  bench_case.ranks = 3;
  bench_case.tokens = 50;
  bench_case.experts = 64;
  bench_case.routing = *RoutingSpec::parse(GetParam());
  ASSERT_TRUE(bench_case.settle().ok());
  const Routing routing = make_routing(bench_case, 2);
  EXPECT_EQ(routing.ids, make_routing(bench_case, 2).ids);
  EXPECT_NE(routing.ids, make_routing(bench_case, 3).ids);
  ASSERT_EQ(routing.ids.size(), 3U * 50U * 8U);
  for (std::size_t at = 0; at < routing.ids.size(); at += 8) {
    const std::set<std::int32_t> distinct(
        routing.ids.begin() + static_cast<std::ptrdiff_t>(at),
        routing.ids.begin() + static_cast<std::ptrdiff_t>(at + 8));
    EXPECT_EQ(distinct.size(), 8U);
    EXPECT_GE(*distinct.begin(), 0);
    EXPECT_LT(*distinct.rbegin(), 64);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryDistribution,
                         testing::Values("uniform", "zipf:1.2", "hot:4", "grouped:4",
                                         "grouped:1/2"));

TEST(Distribution, GroupsAreThoseOfNodes) {
  Case bench_case;
  bench_case.ranks = bench_case.nodes = 4;
  bench_case.tokens = 50;
  bench_case.routing = *RoutingSpec::parse("grouped:2/4");
  ASSERT_TRUE(bench_case.settle().ok());
  const Routing routing = make_routing(bench_case, 0);
  const int each = bench_case.experts / bench_case.nodes;
  std::set<int> all;
  for (std::size_t at = 0; at < routing.ids.size(); at += 8) {
    std::set<int> nodes;
    for (std::size_t k = 0; k < 8; ++k) nodes.insert(routing.ids[at + k] / each);
    EXPECT_LE(nodes.size(), 2U);
    all.insert(nodes.begin(), nodes.end());
  }
  EXPECT_EQ(all.size(), 4U);
}

TEST(Distribution, HotExpertsAreHot) {
  Case bench_case;
  bench_case.tokens = 200;
  bench_case.routing = *RoutingSpec::parse("hot:4");
  const Routing routing = make_routing(bench_case, 0);
  std::vector<int> counts(256);
  for (const std::int32_t id : routing.ids) ++counts[static_cast<std::size_t>(id)];
  std::sort(counts.rbegin(), counts.rend());
  EXPECT_GT(counts[3], 10 * counts[4]);
}

TEST(Summary, IsNearestRank) {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  const Summary summary = Summary::of(samples);
  EXPECT_EQ(summary.min, 1.0);
  EXPECT_EQ(summary.p50, 50.0);
  EXPECT_EQ(summary.p99, 99.0);
  EXPECT_EQ(summary.max, 100.0);
  EXPECT_EQ(Summary::of({7.0}).p99, 7.0);
}

}  // namespace
}  // namespace sluice::bench
