// SPDX-License-Identifier: MIT
//
// The kernel that tells the host how many rows come, for the simulated GPU.
#include <cuda_runtime_api.h>

#include "gpu_simulator/device.hpp"
// After it: what it defines.

#include "engine/cuda/row_counts.cu"
