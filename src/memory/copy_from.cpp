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
  return cuda_status(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "copying from the GPU");
#else
  return {StatusCode::unavailable, "this library was built without CUDA"};
#endif
}

}  // namespace sluice::memory
