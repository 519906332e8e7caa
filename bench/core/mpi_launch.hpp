// SPDX-License-Identifier: MIT
#pragma once

#include "options.hpp"

namespace sluice::bench {

/// Starts the same command as the MPI peer's executable, under mpirun; its exit status. With --netns
/// mpirun is on the first node, and its daemons are started on the others by a launch agent.
int run_mpi_peer(const BenchOptions& options, int argc, char** argv);

}  // namespace sluice::bench
