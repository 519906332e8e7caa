// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include <sluice/sluice.hpp>

#include "gpu_options.hpp"
#include "stack.hpp"

namespace moe {

/// What run_stack of example 01 does, on GPU `device`; collective. One entry of the times is of one
/// repetition of the whole layer, which must give the same bits every time.
sluice::Result<RankResult> run_gpu_stack(sluice::World& world, const GpuOptions& options,
                                         int device, const std::vector<std::int32_t>& tokens,
                                         const StackProgress& progress);

}  // namespace moe
