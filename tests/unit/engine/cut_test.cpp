// SPDX-License-Identifier: MIT
#include "engine/cuda/cut.hpp"

#include <gtest/gtest.h>

namespace sluice::engine::cuda {
namespace {

constexpr int kProcessors = 132;

Load load(int tokens, int ranks) {
  return {tokens, ranks, 7168, kProcessors};
}

// What was measured as the fastest: docs/performance/cuda-engine.md, version 14.
TEST(CutCuda, IsWhatWasMeasured) {
  struct Row {
    int tokens, ranks;
    bool many_dispatched;
    int dispatch_blocks;
    bool many_combined;
    int combine_blocks;
  };
  constexpr Row kRows[] = {
      {1, 4, false, 132, false, 132}, {4, 4, false, 66, false, 66},
      {8, 4, false, 66, false, 66},   {12, 4, false, 66, true, 66},
      {16, 4, false, 66, true, 66},   {24, 4, true, 132, true, 132},
      {32, 4, true, 132, true, 132},  {128, 4, true, 132, true, 132},
      {256, 4, true, 264, true, 264}, {8, 2, false, 66, false, 66},
      {16, 2, false, 66, false, 66},  {32, 2, false, 66, false, 132},
      {64, 2, true, 132, true, 132},  {128, 2, true, 132, true, 132},
      {256, 2, true, 264, true, 264},
  };
  for (const Row& row : kRows) {
    const Cut dispatch = cut_dispatch(load(row.tokens, row.ranks));
    const Cut combine = cut_combine(load(row.tokens, row.ranks));
    SCOPED_TRACE(testing::Message() << row.tokens << " tokens, " << row.ranks << " ranks");
    EXPECT_EQ(dispatch.many, row.many_dispatched);
    EXPECT_EQ(dispatch.blocks, row.dispatch_blocks);
    EXPECT_EQ(combine.many, row.many_combined);
    EXPECT_EQ(combine.blocks, row.combine_blocks);
  }
}

// Whatever is asked for there are blocks, and fewer than one for each multiprocessor only where every warp has a piece
// at most.
TEST(CutCuda, GivesAllWarpsAPieceBeforeAnyGetsTwo) {
  for (const int processors : {1, 2, 3, 4, 8, 108, 132, 148}) {
    for (const int hidden : {16, 512, 2048, 7168, 16384}) {
      for (int ranks = 1; ranks <= 16; ++ranks) {
        for (int tokens = 0; tokens <= 512; ++tokens) {
          const Load at{tokens, ranks, hidden, processors};
          for (const bool combines : {false, true}) {
            const Cut cut = combines ? cut_combine(at) : cut_dispatch(at);
            const int step = (!combines || cut.many ? 2 : 1) * kStepElements;
            ASSERT_GE(cut.blocks, 1);
            ASSERT_LE(cut.blocks, 2 * processors);
            if (cut.blocks < processors) {
              ASSERT_LE(at.pieces(step), cut.blocks * kBlockWarps)
                  << tokens << " tokens, " << ranks << " ranks, hidden " << hidden << ", "
                  << processors << " multiprocessors";
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::engine::cuda
