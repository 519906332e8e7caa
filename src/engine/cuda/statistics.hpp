// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/resources.hpp"
#include "sluice/communicator.hpp"

namespace sluice::engine::cuda {

/// Fills in what kernels have counted by now. Waits for a copy, not for kernels.
void read_statistics(const Resources& resources, Statistics& statistics);

}  // namespace sluice::engine::cuda
