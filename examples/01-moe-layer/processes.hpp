// SPDX-License-Identifier: MIT
#pragma once

#include <functional>

namespace moe {

/// Whether torchrun, mpirun, srun or SLUICE_RANK already made this process one rank of several.
bool started_by_launcher();

/// Forks `ranks` processes that each call body(rank) and exit with what it returns. Waits for all
/// of them; returns 0 if all returned 0, else 1, having said on stderr who failed and how.
int run_processes(int ranks, const std::function<int(int rank)>& body);

}  // namespace moe
