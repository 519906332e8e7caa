// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/kernel_mutants.hpp"

namespace sluice::engine::cuda {

/// Whether a deliberate bug was chosen: never on a GPU, where nothing of them remains. tests/gpu_simulator
/// has a file of the same name that asks SLUICE_KERNEL_MUTANT.
__device__ __forceinline__ constexpr bool mutant(KernelMutant /*mutant*/) {
  return false;
}

}  // namespace sluice::engine::cuda
