// SPDX-License-Identifier: MIT
//
// The kernel that carries what the network brings, for the simulated GPU.
#include <cuda_runtime_api.h>

#include "gpu_simulator/device.hpp"
// After it: what it defines.

#include "engine/cuda/ferry.cu"
