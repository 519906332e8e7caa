// SPDX-License-Identifier: MIT
#pragma once

#include "options.hpp"

namespace sluice::bench {

/// Whether a launcher (torchrun, mpirun, srun, or SLUICE_*) has started this process as one rank.
bool launched_as_rank();

/// This process is one rank of a launcher's world.
int run_from_environment(BenchOptions& options);
/// Forks the ranks and watches over them: a rank that dies or makes no progress ends the run with
/// an error, never with a wait.
int run_forked(const BenchOptions& options);
/// Ranks as threads of this process.
int run_threads(const BenchOptions& options);

}  // namespace sluice::bench
