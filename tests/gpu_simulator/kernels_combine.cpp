// SPDX-License-Identifier: MIT
//
// The kernels of combine, for the simulated GPU.
#include <cuda_runtime_api.h>

#include "gpu_simulator/device.hpp"
// After it: what it defines.

#include "engine/cuda/combine.cu"

namespace sluice::engine::cuda {
namespace {

alignas(16) thread_local std::byte shared_rows[gpu_simulator::kDynamicBytes];

}  // namespace
}  // namespace sluice::engine::cuda
