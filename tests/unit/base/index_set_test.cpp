// SPDX-License-Identifier: MIT
#include "base/index_set.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace sluice::base {
namespace {

std::vector<int> all(const IndexSet& set) {
  std::vector<int> found;
  set.for_each([&](int number) { found.push_back(number); });
  return found;
}

TEST(IndexSet, IsASet) {
  for (const int size : {1, 63, 64, 65, 1000}) {
    std::mt19937 random(static_cast<unsigned>(size));
    IndexSet set(size);
    std::set<int> expected;
    for (int step = 0; step < 20000; ++step) {
      const int number = static_cast<int>(random() % static_cast<unsigned>(size));
      // Fuller and emptier in turn.
      if (random() % 8 < (step / 2000 % 2 == 0 ? 6U : 2U)) {
        set.insert(number);
        expected.insert(number);
      } else {
        set.erase(number);
        expected.erase(number);
      }
      if (step % 50 == 0) {
        ASSERT_EQ(all(set), std::vector<int>(expected.begin(), expected.end()));
      }
    }
  }
}

TEST(IndexSet, MayLoseWhatIsVisited) {
  IndexSet set(200);
  for (int number = 0; number < 200; number += 3) set.insert(number);
  std::vector<int> seen;
  set.for_each([&](int number) {
    seen.push_back(number);
    set.erase(number);
  });
  EXPECT_EQ(seen.size(), 67U);
  EXPECT_TRUE(all(set).empty());
}

}  // namespace
}  // namespace sluice::base
