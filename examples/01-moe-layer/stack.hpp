// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <sluice/sluice.hpp>

#include "options.hpp"

namespace moe {

/// Microseconds of one layer on one rank, one entry per step and repetition.
struct LayerTimes {
  std::vector<double> dispatch;
  std::vector<double> experts;  // One entry per step.
  std::vector<double> combine;
  std::vector<double> combine_single;
};

/// What one rank knows after it has run the stack on its part of every step's tokens.
struct RankResult {
  std::vector<Bf16> final;                 ///< [tokens, hidden] after the last layer.
  std::vector<std::vector<Bf16>> updates;  ///< Per layer: the default reduction's result.
  std::vector<LayerTimes> times;           ///< Per layer.
};

/// The part of a step's tokens that a rank holds.
struct Slice {
  int begin = 0;
  int count = 0;
};
Slice slice_of(int tokens, int ranks, int rank) noexcept;

/// Tells how far a run is: a step and a layer, from 0.
using StackProgress = std::function<void(int step, int layer)>;

/// Runs the stack with Sluice over the ranks of `world`; collective. `tokens` holds all steps.
sluice::Result<RankResult> run_stack(sluice::World& world, const Options& options,
                                     const std::vector<std::int32_t>& tokens,
                                     const StackProgress& progress);

}  // namespace moe
