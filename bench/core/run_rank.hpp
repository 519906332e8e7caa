// SPDX-License-Identifier: MIT
#pragma once

#include "board.hpp"
#include "measure.hpp"
#include "network_meter.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "sluice/world.hpp"
#include "workload.hpp"

namespace sluice::bench {

/// What the program ends with. 1 is a wrong value, 3 a void comparison (see Results).
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 2;

/// One rank's whole run over contestants that exist already: warm-up, timing, check, profile,
/// report. Rank 0 prints. `network`: on several nodes. Returns the exit status.
int run_contestants(Board& board, const Workload& workload, const Contestants& contestants,
                    const RunSettings& settings, Progress& progress,
                    NetworkMeter* network = nullptr);

/// Bytes for every rank of a board on several nodes, where only Sluice is measured.
std::size_t board_bytes(const Case& bench_case);

/// The same for Sluice alone, from a world on. Collective. `board_memory`: of all ranks, board_bytes for
/// each, zeroed, and shared by all of them; null: each node's ranks share some of the world's.
int run_sluice(World& world, std::byte* board_memory, const Workload& workload,
               const RunSettings& settings, Progress& progress);

/// Prints "sluice bench: ..." on standard error and returns kExitFailed.
int complain(const Status& status, int rank);

}  // namespace sluice::bench
