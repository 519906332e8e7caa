// SPDX-License-Identifier: MIT
//
// The kernels of dispatch, for the simulated GPU.
#include <cuda_runtime_api.h>

#include "gpu_simulator/device.hpp"
// After it: what it defines.

// Has a variable of the name below.
#include "engine/cuda/operation.cuh"

#define shared_memory SLUICE_DYNAMIC_MEMORY(dispatch)
#include "engine/cuda/dispatch.cu"

namespace sluice::engine::cuda {
namespace {

SLUICE_DEFINE_DYNAMIC_MEMORY(dispatch);

}  // namespace
}  // namespace sluice::engine::cuda
