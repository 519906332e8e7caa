// SPDX-License-Identifier: MIT
//
// The kernels of dispatch in throughput mode, for the simulated GPU.
#include <cuda_runtime_api.h>

#include "gpu_simulator/device.hpp"
// After it: what it defines.

#include "engine/cuda/throughput_dispatch.cu"

namespace sluice::engine::cuda {

alignas(128) thread_local std::byte throughput_memory[gpu_simulator::kDynamicBytes];

}  // namespace sluice::engine::cuda
