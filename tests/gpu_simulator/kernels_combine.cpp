// SPDX-License-Identifier: MIT
//
// The kernels of combine, for the simulated GPU.
#include <cuda_runtime_api.h>

#include "gpu_simulator/device.hpp"
// After it: what it defines.

#define shared_rows SLUICE_DYNAMIC_MEMORY(combine)
#include "engine/cuda/combine.cu"

namespace sluice::engine::cuda {
namespace {

SLUICE_DEFINE_DYNAMIC_MEMORY(combine);

}  // namespace
}  // namespace sluice::engine::cuda
