// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "engine/cuda/ptx.cuh"

namespace sluice::bench {

/// As kernels of the engine are: launched early. Returns CUDA's error code.
template <typename... Args>
int launch_early(void (*kernel)(Args...), int blocks, int threads, void* stream,
                 const std::type_identity_t<std::remove_cvref_t<Args>>&... args) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early;
  config.numAttrs = 1;
  return engine::cuda::launch_in_place(config, kernel, args...);
}

}  // namespace sluice::bench
