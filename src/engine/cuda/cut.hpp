// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "engine/cuda/kernels.hpp"

/// Latency mode: into how large pieces and among how many blocks an operation is cut. Any choice is right; these were the
/// fastest on 2 and 4 GPUs of 132 multiprocessors (docs/performance/cuda-engine.md, version 14).
namespace sluice::engine::cuda {

/// What a rank's call is about.
struct Load {
  int tokens = 0;
  int ranks = 0;
  int hidden = 0;
  int processors = 0;

  constexpr int pieces(int elements) const {
    return tokens * ranks * ((hidden + elements - 1) / elements);
  }
  /// Records that go to others.
  constexpr int sent() const { return tokens * std::max(ranks - 1, 1); }
};

struct Cut {
  bool many = false;  // Large pieces, rather than one for every warp.
  int blocks = 0;
};

/// Where each warp has a piece at most, one multiprocessor of two is enough, but for very few pieces: two that are
/// neighbours fetch their instructions through one cache. The other one has room for the next operation's blocks, as it
/// has with one block on each, where both begin to read before the operation before them has ended.
constexpr int blocks_for(const Load& load, int pieces) {
  constexpr int kTwoBlocks = 128;  // Tokens: of more, two blocks on each multiprocessor move more.
  if (load.tokens > kTwoBlocks) return 2 * load.processors;
  const int half = load.processors / 2;
  const int warps = half * kBlockWarps * 7 / 8;  // Some keep books.
  const bool few = load.pieces(2 * kStepElements) <= load.processors;
  return !few && pieces <= warps ? half : load.processors;
}

constexpr Cut cut_dispatch(const Load& load) {
  constexpr int kFewTokens = 32;
  constexpr int kFewRecords = 48;
  return {load.tokens > kFewTokens || load.sent() > kFewRecords,
          blocks_for(load, load.pieces(2 * kStepElements))};
}

constexpr Cut cut_combine(const Load& load) {
  constexpr int kFewRecords = 32;
  const bool many = load.sent() > kFewRecords;
  return {many, blocks_for(load, load.pieces((many ? 2 : 1) * kStepElements))};
}

}  // namespace sluice::engine::cuda
