// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <chrono>

#include "base/processor_quota.hpp"
#include "bootstrap/processors.hpp"
#include "bootstrap/thread_group.hpp"
#include "unit/bootstrap/ranks.hpp"

namespace sluice::bootstrap {
namespace {

// Ranks of one machine share its processors, whatever nodes they are played on, and a rank that is bound has no more than it
// may use.
TEST(ProcessorsOfRank, AreItsPartOfThoseThatItMayUse) {
  cpu_set_t usable;
  ASSERT_EQ(sched_getaffinity(0, sizeof(usable), &usable), 0);
  const int all = CPU_COUNT(&usable);
  const auto quota = base::processor_quota();
  const auto within_quota = [&](int processors, int ranks) {
    return quota ? std::min(processors, static_cast<int>(quota->processors / ranks + 0.01))
                 : processors;
  };
  for (const int ranks : {1, 2, 3}) {
    auto groups = bootstrap::ThreadGroup::create_all(ranks);
    testing::for_each_rank(ranks, [&](int rank) {
      bootstrap::Group& group = *groups[static_cast<std::size_t>(rank)];
      const auto deadline = base::Deadline::after(std::chrono::seconds(60));
      const Result<int> free = processors_of_rank(group, deadline);
      ASSERT_TRUE(free.ok()) << free.status().to_string();
      EXPECT_EQ(*free, within_quota(all / ranks, ranks));

      // The thread of rank 0 on the first one, those of the others on the rest, if there is any.
      cpu_set_t set;
      CPU_ZERO(&set);
      int place = 0;
      for (std::size_t i = 0; i < CPU_SETSIZE; ++i) {
        if (!CPU_ISSET(i, &usable)) continue;
        if ((rank == 0) == (place == 0) || all == 1) CPU_SET(i, &set);
        ++place;
      }
      ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
      const Result<int> bound = processors_of_rank(group, deadline);
      ASSERT_TRUE(bound.ok()) << bound.status().to_string();
      if (all == 1) {
        EXPECT_EQ(*bound, within_quota(1 / ranks, ranks));
      } else {
        EXPECT_EQ(*bound, within_quota(rank == 0 ? 1 : (all - 1) / (ranks - 1), ranks));
      }
    });
  }
}

}  // namespace
}  // namespace sluice::bootstrap
