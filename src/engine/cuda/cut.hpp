// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "engine/cuda/kernels.hpp"

/// Latency mode: into how large pieces and among how many blocks operations are cut. Any choice is right; these were
/// measured on 2 and 4 GPUs of 132 multiprocessors, ranks with as many tokens each (docs/performance/cuda-engine.md,
/// version 14).
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

/// One block on each multiprocessor leaves room for the next operation's, which begin to read before this one has ended.
/// Of more than 128 tokens two blocks move more. Where no warp gets a second piece by it, one multiprocessor of two is
/// enough, but for very few pieces: two that are neighbours presumably fetch their instructions through one cache.
constexpr Cut cut_for(const Load& load) {
  constexpr int kTwoBlocks = 128;
  constexpr int kFewDispatched = 32;  // tokens
  constexpr int kFewRecordsDispatched = 48;
  constexpr int kFewRecordsCombined = 32;
  Cut chosen;
  chosen.many_dispatched = load.tokens > kFewDispatched || load.sent() > kFewRecordsDispatched;
  chosen.many_combined = load.sent() > kFewRecordsCombined;
  const int large = load.pieces(2 * kStepElements);  // Those of a dispatch, or twice as large.
  const int combined = chosen.many_combined ? large : load.pieces(kStepElements);
  const int half = load.processors / 2;
  const int warps = (half - half / 8) * kBlockWarps;  // Some blocks keep books.
  // Of a dispatch of many only some blocks send.
  const bool fits = !chosen.many_dispatched && combined <= warps;
  if (load.tokens > kTwoBlocks) {
    chosen.blocks = 2 * load.processors;
  } else {
    chosen.blocks = fits && large > load.processors ? half : load.processors;
  }
  return chosen;
}

}  // namespace sluice::engine::cuda
