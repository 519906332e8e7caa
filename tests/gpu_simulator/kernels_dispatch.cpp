// SPDX-License-Identifier: MIT
//
// The kernels of dispatch, for the simulated GPU.
#include <cuda_runtime_api.h>

#include "gpu_simulator/device.hpp"
// After it: what it defines.

#include "engine/cuda/dispatch.cu"

namespace sluice::engine::cuda {
namespace {

thread_local std::byte shared_memory[gpu_simulator::kDynamicBytes];

}  // namespace
}  // namespace sluice::engine::cuda
