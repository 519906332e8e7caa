// SPDX-License-Identifier: MIT
// The tests' own tools: a comparison that cannot fail, or a watchdog that does not bite, would
// make every other test worthless.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <set>
#include <thread>

#include "reference/small_float.hpp"
#include "support/compare.hpp"
#include "support/data.hpp"
#include "support/routing.hpp"
#include "support/run_ranks.hpp"
#include "support/tensor.hpp"

namespace sluice::support {
namespace {

TEST(Compare, NamesTheFirstDifference) {
  Findings findings;
  const std::vector<std::int32_t> expected = {1, 2, 3, 4};
  std::vector<std::int32_t> seen = expected;
  expect_values(findings, "rule", "counts", expected,
                ConstTensorView(seen.data(), DType::i32, 2, 2), 2);
  EXPECT_TRUE(findings.empty());
  seen[3] = 5;
  expect_values(findings, "rule", "counts", expected,
                ConstTensorView(seen.data(), DType::i32, 2, 2), 2);
  ASSERT_EQ(findings.texts().size(), 1U);
  EXPECT_EQ(findings.texts()[0], "rule: counts[1, 1]: expected 4, seen 5");
}

TEST(Compare, NanEqualsNanAndZerosDiffer) {
  std::vector<std::byte> a(8);
  std::vector<std::byte> b(8);
  reference::store(DType::f32, a.data(), 0, std::numeric_limits<float>::quiet_NaN());
  reference::store(DType::f32, b.data(), 0, -std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(first_difference(DType::f32, a.data(), b.data(), 2), -1);
  reference::store(DType::f32, b.data(), 1, -0.0F);
  EXPECT_EQ(first_difference(DType::f32, a.data(), b.data(), 2), 1);
}

TEST(TensorTool, GapsStayPoisoned) {
  Tensor tensor(DType::i32, {2, 3, 4}, 2);
  EXPECT_EQ(tensor.view().strides[0], 18);
  EXPECT_EQ(tensor.view().strides[1], 6);
  EXPECT_EQ(tensor.first_written(), -1);
  const std::vector<std::int32_t> row = {1, 2, 3, 4};
  tensor.set_row(4, reinterpret_cast<const std::byte*>(row.data()));
  EXPECT_EQ(tensor.first_written(), 4 * 24);
  EXPECT_EQ(*reinterpret_cast<const std::int32_t*>(tensor.row(4) + 12), 4);
  tensor.poison_row(4);
  EXPECT_EQ(tensor.first_written(), -1);
}

TEST(Draw, SameSeedSameData) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    EXPECT_EQ(draw_elements(dtype, 100, DataKind::specials, Random(7)),
              draw_elements(dtype, 100, DataKind::specials, Random(7)));
    EXPECT_NE(draw_elements(dtype, 100, DataKind::specials, Random(7)),
              draw_elements(dtype, 100, DataKind::specials, Random(8)));
    const std::vector<std::byte> bytes = draw_elements(dtype, 4000, DataKind::specials, Random(1));
    for (std::size_t i = 0; i < 4000; ++i) {
      ASSERT_TRUE(std::isfinite(reference::load(dtype, bytes.data(), i)));
    }
  }
}

TEST(Draw, RoutingsAreWhatTheySay) {
  const auto distinct = draw_ids(RoutingKind::zipf, 50, 6, 7, 0, Random(3));
  for (std::size_t t = 0; t < 50; ++t) {
    std::vector<bool> seen(7, false);
    for (std::size_t k = 0; k < 6; ++k) {
      const auto id = static_cast<std::size_t>(distinct[t * 6 + k]);
      ASSERT_LT(id, 7U);
      EXPECT_FALSE(seen[id]);
      seen[id] = true;
    }
  }
  const auto grouped = draw_ids(RoutingKind::grouped, 50, 9, 16, 0, Random(5));
  for (std::size_t t = 0; t < 50; ++t) {
    std::set<std::int64_t> seen;
    std::set<std::int64_t> groups;
    for (std::size_t k = 0; k < 8; ++k) {
      const std::int64_t id = grouped[t * 9 + k];
      ASSERT_TRUE(id >= 0 && id < 16);
      EXPECT_TRUE(seen.insert(id).second);
      groups.insert(id / 2);
    }
    EXPECT_EQ(groups.size(), 4U);  // As many as have 8 experts.
    EXPECT_EQ(grouped[t * 9 + 8], -1);
  }
  EXPECT_EQ(draw_ids(RoutingKind::none, 2, 2, 4, 0, Random(1)),
            (std::vector<std::int64_t>{-1, -1, -1, -1}));
  bool bad = false;
  for (const std::int64_t id : draw_ids(RoutingKind::distinct, 50, 4, 8, 30, Random(4))) {
    bad = bad || id < -1 || id >= 8;
  }
  EXPECT_TRUE(bad);
}

TEST(RunAsProcesses, BringsFindingsAndNotesHome) {
  const RunResult result = run_as_processes(3, [](World& world, Findings& findings) {
    findings.set_note(std::to_string(world.rank() * 10));
    if (world.rank() == 1) findings.add("something");
  });
  EXPECT_EQ(result.failures, (std::vector<std::string>{"rank 1: something"}));
  EXPECT_EQ(result.notes, (std::vector<std::string>{"0", "10", "20"}));
}

TEST(RunAsProcesses, ReportsADeathAndAHang) {
  RunOptions options;
  options.leave = false;
  options.watchdog = std::chrono::milliseconds(1500);
  const RunResult result = run_as_processes(
      3,
      [](World& world, Findings&) {
        if (world.rank() == 0) ::_exit(5);
        if (world.rank() == 2) std::this_thread::sleep_for(std::chrono::hours(1));
      },
      options);
  ASSERT_EQ(result.failures.size(), 2U) << result.text();
  EXPECT_EQ(result.failures[0], "rank 0: exit status 5");
  EXPECT_EQ(result.failures[1], "rank 2: watchdog: still running after 1500 ms, killed");
}

TEST(RunAsThreads, BringsFindingsAndNotesHome) {
  const RunResult result = run_as_threads(3, [](World& world, Findings& findings) {
    findings.set_note(std::to_string(world.rank() * 10));
    if (world.rank() == 1) findings.add("something");
  });
  EXPECT_EQ(result.failures, (std::vector<std::string>{"rank 1: something"}));
  EXPECT_EQ(result.notes, (std::vector<std::string>{"0", "10", "20"}));
}

TEST(RunAsThreadsDeathTest, WatchdogAborts) {
  RunOptions options;
  options.leave = false;
  options.watchdog = std::chrono::milliseconds(100);
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(run_as_threads(
                   2,
                   [](World& world, Findings&) {
                     if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::hours(1));
                   },
                   options),
               "these ranks still run: 1");
}

}  // namespace
}  // namespace sluice::support
