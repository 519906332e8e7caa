// SPDX-License-Identifier: MIT
#include "exchange_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

namespace sluice::bench {
namespace {

using Parameter = std::tuple<Layout, int>;  // and ranks

class EveryExchange : public testing::TestWithParam<Parameter> {
 protected:
  static constexpr int kSet = 1;

  EveryExchange() : workload_(make_case()) {
    for (int rank = 0; rank < ranks(); ++rank) {
      plans_.push_back(ExchangePlan::make(workload_, kSet, rank));
    }
  }
  static Case make_case() {
    Case bench_case;
    bench_case.layout = std::get<0>(GetParam());
    bench_case.ranks = std::get<1>(GetParam());
    bench_case.tokens = 7;
    bench_case.hidden = 16;
    bench_case.top_k = 2;
    bench_case.experts = 13;
    bench_case.sets = 2;
    return bench_case;
  }
  int ranks() const { return workload_.bench_case.ranks; }
  const ExchangePlan& plan(int rank) const { return plans_[static_cast<std::size_t>(rank)]; }
  std::int32_t place(int source, int token, int rank) const {
    return plan(source).place[static_cast<std::size_t>(token * ranks() + rank)];
  }
  /// The number at `rank` of the record of a token that goes there.
  std::int64_t arrival(int source, int token, int rank) const {
    if (source == rank) return place(source, token, rank);
    const std::int64_t sent = plan(source).out.first[static_cast<std::size_t>(rank)];
    return place(source, token, rank) - sent +
           plan(rank).in.first[static_cast<std::size_t>(source)];
  }

  Workload workload_;
  std::vector<ExchangePlan> plans_;
};

TEST_P(EveryExchange, BothSidesOfAPairAgree) {
  for (std::size_t a = 0; a < plans_.size(); ++a) {
    EXPECT_EQ(plans_[a].out.count[a], 0);
    for (std::size_t b = 0; b < plans_.size(); ++b) {
      if (a == b) continue;
      EXPECT_EQ(plans_[a].out.count[b], plans_[b].in.count[a]);
    }
    EXPECT_EQ(plans_[a].in.total, workload_.placements[kSet].records[a]);
  }
}

/// What is sent by place and received in order ends in the rows that the check looks at.
TEST_P(EveryExchange, EveryRouteReachesItsRow) {
  const Case& c = workload_.bench_case;
  const int width = ExchangePlan::row_width(c);
  for (int rank = 0; rank < ranks(); ++rank) {
    std::vector<int> records(static_cast<std::size_t>(plan(rank).in.total));
    ASSERT_EQ(plan(rank).row.size(), records.size() * static_cast<std::size_t>(width));
    std::ptrdiff_t routes = 0;
    for (int source = 0; source < ranks(); ++source) {
      for (int token = 0; token < c.tokens; ++token) {
        bool goes = false;
        for (int k = 0; k < c.top_k; ++k) {
          const int route = token * c.top_k + k;
          if (c.rank_of_expert(workload_.ids(kSet, source)[route]) != rank) continue;
          ASSERT_GE(place(source, token, rank), 0);
          const std::int64_t at = arrival(source, token, rank) * width + (width > 1 ? k : 0);
          const std::size_t of_all = workload_.route_at(source) + static_cast<std::size_t>(route);
          EXPECT_EQ(plan(rank).row[static_cast<std::size_t>(at)],
                    workload_.placements[kSet].row[of_all]);
          goes = true;
          ++routes;
        }
        EXPECT_EQ(place(source, token, rank) >= 0, goes);
        if (goes) ++records[static_cast<std::size_t>(arrival(source, token, rank))];
      }
    }
    for (const int times : records) EXPECT_EQ(times, 1);
    const auto is_row = [](int row) { return row >= 0; };
    const auto rows = std::count_if(plan(rank).row.begin(), plan(rank).row.end(), is_row);
    EXPECT_EQ(rows, width > 1 ? routes : static_cast<std::ptrdiff_t>(records.size()));
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryExchange,
                         testing::Combine(testing::Values(Layout::rank_major, Layout::expert_major,
                                                          Layout::expert_slab),
                                          testing::Values(1, 2, 5)));

}  // namespace
}  // namespace sluice::bench
