// SPDX-License-Identifier: MIT
#pragma once

#include <mpi.h>

#include <string>

#include "sluice/status.hpp"

namespace sluice::bench {

/// By which way MPI takes what one rank sends to another, for every pair, as text: seen from how many bytes
/// the interface counts while a message of a megabyte is under way. Nothing else may be. Collective;
/// the same on every rank.
Result<std::string> pair_paths(MPI_Comm comm, const std::string& interface);

}  // namespace sluice::bench
