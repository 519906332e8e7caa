// SPDX-License-Identifier: MIT
#include "phase_timer.hpp"

namespace moe {

PhaseTimer::PhaseTimer(Gpu& gpu) : gpu_(gpu) {
  for (Pair& pair : pairs_) {
    gpu_.check(cudaEventCreate(&pair.begin), "an event");
    gpu_.check(cudaEventCreate(&pair.end), "an event");
  }
}

PhaseTimer::~PhaseTimer() {
  for (const Pair& pair : pairs_) {
    if (pair.begin != nullptr) (void)cudaEventDestroy(pair.begin);
    if (pair.end != nullptr) (void)cudaEventDestroy(pair.end);
  }
}

double PhaseTimer::microseconds(Phase phase) {
  float milliseconds = 0.0F;
  const Pair& pair = pair_of(phase);
  gpu_.check(cudaEventElapsedTime(&milliseconds, pair.begin, pair.end), "the time of a phase");
  return static_cast<double>(milliseconds) * 1000.0;
}

void PhaseTimer::read(LayerTimes& times) {
  times.dispatch.push_back(microseconds(Phase::dispatch));
  times.experts.push_back(microseconds(Phase::experts));
  times.combine.push_back(microseconds(Phase::combine));
  times.combine_single.push_back(microseconds(Phase::combine_single));
}

}  // namespace moe
