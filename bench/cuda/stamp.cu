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

}  // namespace

int launch_stamp(std::uint64_t* to, void* stream) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(32);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, stamp_kernel, to);
}

}  // namespace sluice::bench
