// SPDX-License-Identifier: MIT
#include <cuda_runtime_api.h>

#include "engine/cuda/ptx.cuh"
#include "stamp.hpp"

namespace sluice::bench {
namespace {

__global__ void stamp_kernel(std::uint64_t* to) {
  engine::cuda::let_next_start();
  engine::cuda::await_previous();
  if (threadIdx.x == 0) *to = engine::cuda::now_ns();
}

__global__ void delay_kernel(std::uint64_t ns) {
  engine::cuda::let_next_start();
  engine::cuda::await_previous();
  const std::uint64_t begin = engine::cuda::now_ns();
  while (engine::cuda::now_ns() - begin < ns) {
  }
}

/// As kernels of the engine are: launched early.
template <typename... Parameters>
int launch(void (*kernel)(Parameters...), void* stream, Parameters... parameters) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(32);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, parameters...);
}

}  // namespace

int launch_stamp(std::uint64_t* to, void* stream) {
  return launch(stamp_kernel, stream, to);
}

int launch_delay(std::uint64_t ns, void* stream) {
  return launch(delay_kernel, stream, ns);
}

}  // namespace sluice::bench
