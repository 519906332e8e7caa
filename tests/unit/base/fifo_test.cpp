// SPDX-License-Identifier: MIT
#include "base/fifo.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <deque>
#include <random>

namespace sluice::base {
namespace {

TEST(Fifo, IsADeque) {
  std::mt19937 random(7);
  Fifo<int> fifo;
  std::deque<int> expected;
  int next = 0;
  for (int step = 0; step < 200000; ++step) {
    const auto what = random() % 1000;
    // Longer and shorter in turn.
    const unsigned pushes = step / 5000 % 2 == 0 ? 550 : 450;
    if (what == 999) {
      fifo.clear();
      expected.clear();
    } else if (what == 998) {
      const std::size_t size = expected.size() - expected.size() / 4;
      fifo.truncate(size);
      expected.resize(size);
    } else if (what < pushes) {
      fifo.push(next);
      expected.push_back(next++);
    } else if (!expected.empty()) {
      ASSERT_EQ(fifo.front(), expected.front());
      fifo.pop();
      expected.pop_front();
    }
    ASSERT_EQ(fifo.size(), expected.size());
    ASSERT_EQ(fifo.empty(), expected.empty());
    if (!expected.empty()) {
      const std::size_t i = random() % expected.size();
      ASSERT_EQ(fifo[i], expected[i]);
    }
  }
}

// As between operations that overlap: the next one's is there before the last one's is gone.
TEST(Fifo, TakesNoMoreMemoryWhereItIsNeverEmpty) {
  for (const std::size_t longest : {std::size_t{2}, std::size_t{64}, std::size_t{1000}}) {
    Fifo<std::size_t> fifo;
    std::size_t out = 0;
    for (std::size_t in = 0; in < 1000000; ++in) {
      fifo.push(in);
      if (fifo.size() < longest) continue;
      while (fifo.size() > 1 + longest / 2) {
        ASSERT_EQ(fifo.front(), out++);
        fifo.pop();
      }
    }
    EXPECT_LE(fifo.capacity(), 4 * longest + 256);
  }
}

}  // namespace
}  // namespace sluice::base
