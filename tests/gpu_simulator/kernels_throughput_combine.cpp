// SPDX-License-Identifier: MIT
//
// The kernels of combine in throughput mode, for the simulated GPU.
#include <cuda_runtime_api.h>

#include "gpu_simulator/device.hpp"
// After it: what it defines.

#define throughput_memory SLUICE_DYNAMIC_MEMORY(throughput)
#include "engine/cuda/throughput_combine.cu"
