// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "engine/cuda/kernels.hpp"

/// Latency mode: into how large pieces and among how many blocks operations are cut. Any choice is right; these were
/// measured on 2 and 4 GPUs of 132 multiprocessors, ranks with as many tokens each (docs/performance/cuda-engine.md,
/// version 15).
namespace sluice::engine::cuda {

/// What a rank's call is about.
struct Load {
  int tokens = 0;  ///< Its own; the others are taken to have as many.
  int ranks = 0;
  int hidden = 0;
  int processors = 0;

  constexpr int pieces(int elements) const {
    return tokens * ranks * ((hidden + elements - 1) / elements);
  }
  /// Records that go to others, if every token goes to all.
  constexpr int sent() const { return tokens * std::max(ranks - 1, 1); }
};

struct Cut {
  bool many_dispatched = false;  ///< Large pieces, rather than small ones for many warps.
  bool many_combined = false;
  int blocks =
      0;  ///< Of a dispatch and of a combine: as long as they are equal both may be there at once.
};

/// Kernels for many tokens: one block on each multiprocessor leaves room for the next operation's, which begin to read
/// before this one has ended. Of more than 128 tokens two blocks move more. Those for few have a multiprocessor for
/// themselves (blocks_together()): as long as at most half of the warps get a second piece by it, they take every second one,
/// and the next operation's the others.
constexpr Cut cut_for(const Load& load) {
  constexpr int kTwoBlocks = 128;
  constexpr int kFewDispatched = 32;  // tokens
  constexpr int kFewRecordsDispatched = 48;
  constexpr int kFewRecordsCombined = 40;
  Cut chosen;
  chosen.many_dispatched = load.tokens > kFewDispatched || load.sent() > kFewRecordsDispatched;
  chosen.many_combined = chosen.many_dispatched || load.sent() > kFewRecordsCombined;
  const int half = load.processors / 2;
  const int warps = (half - half / 8) * kBlockWarps;  // Some blocks keep books.
  // Nothing is known of the others where there is none here.
  const bool fits = load.tokens > 0 && 2 * load.pieces(kStepElements) <= 3 * warps;
  if (load.tokens > kTwoBlocks) {
    chosen.blocks = 2 * load.processors;
  } else {
    chosen.blocks = fits && !chosen.many_combined ? half : load.processors;
  }
  return chosen;
}

}  // namespace sluice::engine::cuda
