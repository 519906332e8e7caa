// SPDX-License-Identifier: MIT
#include "engine/cuda/cut.hpp"

#include <gtest/gtest.h>

namespace sluice::engine::cuda {
namespace {

// As docs/performance/cuda-engine.md, version 15, has it.
TEST(CutCuda, IsWhatWasMeasured) {
  struct Row {
    int tokens, ranks, hidden;
    bool many_dispatched, many_combined;
    int blocks;
  };
  constexpr Row kRows[] = {
      {1, 4, 7168, false, false, 66},
      {2, 4, 7168, false, false, 66},
      {4, 4, 7168, false, false, 66},
      {8, 4, 7168, false, false, 66},
      {12, 4, 7168, false, false, 66},
      {16, 4, 7168, false, true, 132},
      {24, 4, 7168, true, true, 132},
      {32, 4, 7168, true, true, 132},
      {128, 4, 7168, true, true, 132},
      {256, 4, 7168, true, true, 264},
      {1, 2, 7168, false, false, 66},
      {4, 2, 7168, false, false, 66},
      {8, 2, 7168, false, false, 66},
      {16, 2, 7168, false, false, 66},
      {24, 2, 7168, false, false, 66},
      {32, 2, 7168, false, false, 132},
      {64, 2, 7168, true, true, 132},
      {128, 2, 7168, true, true, 132},
      {256, 2, 7168, true, true, 264},
      {0, 4, 7168, false, false, 132},
      // Not measured: few blocks only with kernels for few tokens.
      {33, 2, 7168, true, true, 132},
      {8, 8, 7168, true, true, 132},
      {115, 2, 2048, true, true, 132},
  };
  for (const Row& row : kRows) {
    SCOPED_TRACE(testing::Message()
                 << row.tokens << " tokens, " << row.ranks << " ranks, hidden " << row.hidden);
    const Cut seen = cut_for({row.tokens, row.ranks, row.hidden, 132});
    EXPECT_EQ(seen.many_dispatched, row.many_dispatched);
    EXPECT_EQ(seen.many_combined, row.many_combined);
    EXPECT_EQ(seen.blocks, row.blocks);
  }
}

// Whatever is asked for there are blocks, and fewer than one for each multiprocessor only where kernels for few tokens run
// and no warp gets a third piece.
TEST(CutCuda, GivesAllPiecesAWarpInTwoRounds) {
  for (const int processors : {1, 2, 3, 4, 8, 108, 132, 148}) {
    for (const int hidden : {16, 512, 2048, 7168, 16384}) {
      for (int ranks = 1; ranks <= 16; ++ranks) {
        for (int tokens = 0; tokens <= 512; ++tokens) {
          const Load load{tokens, ranks, hidden, processors};
          const Cut seen = cut_for(load);
          ASSERT_GE(seen.blocks, 1);
          ASSERT_LE(seen.blocks, 2 * processors);
          ASSERT_TRUE(seen.many_combined || !seen.many_dispatched);
          if (seen.blocks >= processors) continue;
          const int workers = (seen.blocks - seen.blocks / 8) * kBlockWarps;
          ASSERT_FALSE(seen.many_combined);
          ASSERT_LE(load.pieces(kStepElements), 2 * workers)
              << tokens << " tokens, " << ranks << " ranks, hidden " << hidden << ", " << processors
              << " multiprocessors";
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::engine::cuda
