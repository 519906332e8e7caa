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

/// Whether a launcher's variables say that this process is a rank: then read_launch says which, or what is missing.
bool is_launched(const base::Environment& environment);

/// The first launcher whose variables are set: SLUICE_RANK and SLUICE_SIZE, torchrun, mpirun (Open MPI),
/// srun. They meet at SLUICE_RENDEZVOUS, or if it is not set, where the launcher's variables lead to.
/// invalid_argument names the variable, its value and what was expected, or says that the launcher's ranks are
/// on several hosts and have no place to meet.
Result<Launch> read_launch(const base::Environment& environment);

}  // namespace sluice::bootstrap
