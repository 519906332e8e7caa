// SPDX-License-Identifier: MIT
#pragma once

#include <array>

#include "gpu.hpp"
#include "stack.hpp"

namespace moe {

/// What the table has a column for.
enum class Phase { dispatch, experts, combine, combine_single };

/// Times the phases of a layer by CUDA events, one before and one after each.
class PhaseTimer {
 public:
  explicit PhaseTimer(Gpu& gpu);
  ~PhaseTimer();
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

  /// Queues `work` between the events of a phase.
  template <typename Work>
  void time(Phase phase, const Work& work) {
    gpu_.record(pair_of(phase).begin);
    work();
    gpu_.record(pair_of(phase).end);
  }
  /// Adds the phases' times to `times`. Everything that was queued has ended.
  void read(LayerTimes& times);

 private:
  struct Pair {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
  };
  Pair& pair_of(Phase phase) { return pairs_[static_cast<std::size_t>(phase)]; }
  double microseconds(Phase phase);

  Gpu& gpu_;
  std::array<Pair, 4> pairs_;
};

}  // namespace moe
