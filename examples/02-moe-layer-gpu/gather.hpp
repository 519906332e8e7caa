// SPDX-License-Identifier: MIT
#pragma once

#include <sluice/sluice.hpp>

#include "options.hpp"
#include "report.hpp"
#include "stack.hpp"

namespace moe {

/// Collective: brings what every rank has to all of them. Of the times of one operation, that of
/// the slowest rank counts.
sluice::Result<GatheredRun> gather_run(sluice::World& world, const Options& options,
                                       RankResult result);

}  // namespace moe
