// SPDX-License-Identifier: MIT
//
// plan_rows against a brute force that lists the rows, sorts them, and numbers them one by one.
#include "routing/row_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "sluice/handle.hpp"

namespace sluice::routing {
namespace {

struct Case {
  RowPlacement placement;
  int experts = 0;
  int top_k = 0;
  std::int64_t records = 0;
  std::vector<std::int32_t> ids;  // [records, K]

  std::int32_t id(std::int64_t record, int k) const {
    return ids[static_cast<std::size_t>(record * top_k + k)];
  }
};

struct Planned {
  std::vector<std::int32_t> counts, aligned_counts, route_rows;
  std::vector<std::int64_t> offsets;
  std::int64_t rows = 0;
  std::int64_t overflow = 0;
};

Planned planned(const Case& one) {
  Planned out;
  const auto experts = static_cast<std::size_t>(one.experts);
  out.counts.resize(experts, -9);
  out.aligned_counts.resize(experts, -9);
  out.offsets.resize(experts + 1, -9);
  out.route_rows.resize(one.ids.size(), -9);
  RowPlan plan;
  plan.records = one.records;
  plan.top_k = one.top_k;
  plan.local_ids = one.ids.data();
  plan.counts = out.counts;
  plan.aligned_counts = out.aligned_counts;
  plan.offsets = out.offsets;
  plan.route_rows = out.route_rows.data();
  const RowTotals totals = plan_rows(one.placement, plan);
  out.rows = totals.rows;
  out.overflow = totals.overflow;
  return out;
}

Planned brute_force(const Case& one) {
  Planned out;
  const Layout layout = one.placement.layout;
  // Distinct (expert, record), which is the order of rows in the expert layouts.
  std::map<std::pair<std::int32_t, std::int64_t>, std::int64_t> rows;
  for (std::int64_t record = 0; record < one.records; ++record) {
    for (int k = 0; k < one.top_k; ++k) {
      if (one.id(record, k) >= 0) rows[{one.id(record, k), record}] = -1;
    }
  }
  const std::int64_t alignment = layout == Layout::expert_major ? one.placement.alignment : 1;
  std::int64_t begin = 0;
  for (std::int32_t expert = 0; expert < one.experts; ++expert) {
    if (layout == Layout::expert_slab) begin = expert * one.placement.capacity;
    out.offsets.push_back(begin);
    std::int64_t row = begin;
    std::int32_t count = 0;
    for (auto& [key, number] : rows) {
      if (key.first != expert) continue;
      number = row++;
      ++count;
    }
    std::int32_t aligned = count;
    while (aligned % alignment != 0) ++aligned;
    out.counts.push_back(count);
    out.aligned_counts.push_back(aligned);
    begin += layout == Layout::expert_slab ? one.placement.capacity : aligned;
  }
  out.offsets.push_back(begin);

  const auto stored = [&](std::int32_t expert, std::int64_t row) {
    if (layout == Layout::expert_slab) {
      return row < (expert + 1) * one.placement.capacity;
    }
    return one.placement.capacity == 0 || row < one.placement.capacity;
  };
  for (std::int64_t record = 0; record < one.records; ++record) {
    for (int k = 0; k < one.top_k; ++k) {
      const std::int32_t expert = one.id(record, k);
      if (expert < 0) {
        out.route_rows.push_back(Handle::kRowAbsent);
        continue;
      }
      bool duplicate = false;
      for (int lower = 0; lower < k; ++lower) duplicate |= one.id(record, lower) == expert;
      if (layout != Layout::rank_major && duplicate) {
        out.route_rows.push_back(Handle::kRowDuplicate);
        continue;
      }
      const std::int64_t row = layout == Layout::rank_major ? record : rows[{expert, record}];
      const bool fits = stored(expert, row);
      out.route_rows.push_back(fits ? static_cast<std::int32_t>(row) : Handle::kRowOverflow);
      if (layout != Layout::rank_major && !fits) ++out.overflow;
    }
  }
  out.rows = begin;
  if (layout == Layout::rank_major) out.rows = one.records;
  if (layout != Layout::expert_slab && one.placement.capacity > 0) {
    out.rows = std::min(out.rows, one.placement.capacity);
  }
  if (layout == Layout::rank_major) out.overflow = one.records - out.rows;
  return out;
}

Case draw_case(std::mt19937& random, Layout layout) {
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<unsigned>(bound));
  };
  Case one;
  one.experts = below(7);
  one.top_k = 1 + below(6);
  one.records = below(20);
  for (std::int64_t route = 0; route < one.records * one.top_k; ++route) {
    one.ids.push_back(one.experts == 0 || below(3) == 0 ? -1 : below(one.experts));
  }
  one.placement.layout = layout;
  one.placement.alignment = below(2) == 0 ? 1 : 1 + below(9);
  one.placement.capacity = below(3) == 0 ? 0 : below(30);
  if (layout == Layout::expert_slab) one.placement.capacity = 1 + below(12);
  return one;
}

class RowPlanTest : public ::testing::TestWithParam<Layout> {};

TEST_P(RowPlanTest, MatchesTheBruteForce) {
  std::mt19937 random(11);
  int overflowed = 0;
  for (int i = 0; i < 4000; ++i) {
    const Case one = draw_case(random, GetParam());
    const Planned seen = planned(one);
    const Planned expected = brute_force(one);
    overflowed += expected.overflow > 0 ? 1 : 0;
    ASSERT_EQ(seen.counts, expected.counts) << "case " << i;
    ASSERT_EQ(seen.aligned_counts, expected.aligned_counts) << "case " << i;
    ASSERT_EQ(seen.offsets, expected.offsets) << "case " << i;
    ASSERT_EQ(seen.route_rows, expected.route_rows) << "case " << i;
    ASSERT_EQ(seen.rows, expected.rows) << "case " << i;
    ASSERT_EQ(seen.overflow, expected.overflow) << "case " << i;
  }
  EXPECT_GT(overflowed, 400);  // The cases are worth their name.
}

INSTANTIATE_TEST_SUITE_P(Layouts, RowPlanTest,
                         ::testing::Values(Layout::rank_major, Layout::expert_major,
                                           Layout::expert_slab),
                         [](const auto& one) { return std::string(to_string(one.param)); });

TEST(RowPlanByHand, DuplicatesAlignmentAndCapacity) {
  Case one;
  one.experts = 2;
  one.top_k = 3;
  one.records = 3;
  one.ids = {1, 0, 1, 0, -1, -1, 1, 1, 0};
  one.placement = {Layout::expert_major, 4, 6};
  const Planned seen = planned(one);
  EXPECT_EQ(seen.counts, (std::vector<std::int32_t>{3, 2}));
  EXPECT_EQ(seen.aligned_counts, (std::vector<std::int32_t>{4, 4}));
  EXPECT_EQ(seen.offsets, (std::vector<std::int64_t>{0, 4, 8}));
  EXPECT_EQ(seen.route_rows, (std::vector<std::int32_t>{4, 0, -2, 1, -1, -1, 5, -2, 2}));
  EXPECT_EQ(seen.rows, 6);
  EXPECT_EQ(seen.overflow, 0);
}

}  // namespace
}  // namespace sluice::routing
