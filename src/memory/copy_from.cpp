// SPDX-License-Identifier: MIT
#include "memory/copy_from.hpp"

#include <cstring>

#if SLUICE_HAS_CUDA
#include "memory/cuda/cuda_status.hpp"
#endif

namespace sluice::memory {

Status copy_from(Device device, void* to, const void* from, std::size_t bytes) {
  if (device == Device::cpu) {
    std::memcpy(to, from, bytes);
    return {};
  }
#if SLUICE_HAS_CUDA
  cudaPointerAttributes attributes = {};
  if (Status status = cuda_status(cudaPointerGetAttributes(&attributes, from), "memory of a GPU");
      !status.ok()) {
    return status;
  }
  if (attributes.type == cudaMemoryTypeHost) {
    std::memcpy(to, from, bytes);
    return {};
  }
  // Not by the default stream, which waits for others.
  if (Status status =
          cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, cudaStreamPerThread),
                      "copying from the GPU");
      !status.ok()) {
    return status;
  }
  return cuda_status(cudaStreamSynchronize(cudaStreamPerThread), "copying from the GPU");
#else
  return {StatusCode::unavailable, "this library was built without CUDA"};
#endif
}

}  // namespace sluice::memory
