// SPDX-License-Identifier: MIT
#pragma once

#include "board.hpp"
#include "measure.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "sluice/world.hpp"
#include "workload.hpp"

namespace sluice::bench {

/// What the program ends with. 1 is a wrong value, 3 a void comparison (see Results).
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 2;

/// One rank's whole run over contestants that exist already: warm-up, timing, check, profile,
/// report. Rank 0 prints. Returns the exit status.
int run_contestants(Board& board, const Workload& workload, const Contestants& contestants,
                    const RunSettings& settings, Progress& progress);

/// The same for Sluice alone, from a world on. Collective. `board`: a world of the same ranks on one
/// node, for what the benchmark itself shares; the same one, if it is on one node.
int run_sluice(World& world, World& board, const Workload& workload, const RunSettings& settings,
               Progress& progress);

/// Prints "sluice bench: ..." on standard error and returns kExitFailed.
int complain(const Status& status, int rank);

}  // namespace sluice::bench
