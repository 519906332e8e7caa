// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/waiting.cuh"

/// Who is given up while what it sends arrives: all warps of an operation must act as if it had sent the same.
///
/// - Who gives up a peer first *closes* the operation for it (`closing`) and lets a grace pass; then the evidence
///   stands (`closed`). Nobody takes anything of that peer any more.
/// - A warp that never was weary does not look. When the grace begins it has found all it needs, or its next wait
///   makes it weary, after kPollsPerLook polls: far less than the grace, as all warps of a launch run at the
///   same time (but for tools under which kernels are a hundred times slower). A weary warp looks whether a peer is being closed after it has read what has come, and before it takes
///   it: if not, what it read had come before, and what it does with that is done before the grace is over.
/// - Not covered: a warp that has enough to do for longer than the grace without ever waiting, because another kernel
///   holds its block up, or because few blocks have many tokens or slow memory (docs/cuda-engine.md).
/// - Later operations do without the peer from the begin (`absent`). It is set after the grace, when all blocks
///   of this launch have read it; those of the next one read it after this one has ended.
namespace sluice::engine::cuda {

/// Lets kGraceNs pass in many small steps: not at once, should the GPU be given to another process meanwhile. By one lane.
/// Not a call: CUDA 13.0 compiles one, from where lanes have parted, without the uniform register that its loads
/// go through ("illegal instruction" on an H200).
__device__ __forceinline__ void wait_grace(const Geometry& g) {
  constexpr int kSteps = 1000;
#pragma unroll 1
  for (int i = 0; i < kSteps; ++i) {
    const std::uint64_t begin = now_ns();
    *const_cast<volatile std::uint64_t*>(&g.board->waits) = begin;
    while (now_ns() - begin < kGraceNs / kSteps) (void)load_acquire(&g.state->suspects);
  }
}

/// What closing, closed and mended hold of the operation of this tag: never what memory holds that nobody has written. Only
/// for equality, since tags wrap around; a bank's next operation begins when the one before has ended everywhere.
__device__ __forceinline__ std::uint32_t mark_of(std::uint32_t tag) {
  return tag | 1U << 31;
}

/// Waits until `word` is marked for the operation of this tag, by somebody who lets a grace pass before. Not for ever.
__device__ __forceinline__ void await_mark(const std::uint32_t* word, std::uint32_t tag) {
  constexpr std::uint64_t kLongestNs = 20'000'000'000;
  const std::uint64_t begin = now_ns();
  while (load_acquire(word) != mark_of(tag) && now_ns() - begin < kLongestNs) {
  }
}

/// Whether the calling thread is the first to mark `word` for the operation of this tag.
__device__ __forceinline__ bool claim(std::uint32_t* word, std::uint32_t tag) {
  const std::uint32_t before = load_acquire(word);
  return before != mark_of(tag) && atomicCAS(word, before, mark_of(tag)) == before;
}

}  // namespace sluice::engine::cuda
