// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/environment.hpp"
#include "sluice/status.hpp"

namespace sluice::bootstrap {

/// What a launcher told this process.
struct Launch {
  const char* launcher = "";  // For messages: "torchrun".
  int rank = 0;
  int size = 0;
  std::string rendezvous;  // As World::join takes it.
};

/// The first launcher whose variables are set: SLUICE_*, torchrun, mpirun (Open MPI), srun.
/// invalid_argument names the variable, its value and what was expected; unimplemented is for a
/// launch over several hosts that the launcher's variables already show.
Result<Launch> read_launch(const base::Environment& environment);

}  // namespace sluice::bootstrap
