// SPDX-License-Identifier: MIT
#include "engine/cuda/caller_memory.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "memory/cuda/cuda_status.hpp"

namespace sluice::engine::cuda {

Status CallerMemory::check(const void* memory) const {
  cudaPointerAttributes attributes = {};
  if (Status status = memory::cuda_status(cudaPointerGetAttributes(&attributes, memory), name_);
      !status.ok()) {
    return status;
  }
  const bool on_gpu = attributes.type == cudaMemoryTypeDevice;
  if (attributes.devicePointer == memory && !(read_by_host_ && on_gpu)) return {};
  return {StatusCode::invalid_argument,
          fmt::format("{} = {}: expected memory that the GPU can write to ({})", name_,
                      fmt::ptr(memory),
                      read_by_host_ ? "pinned or managed, so that the host can read it, too"
                                    : "GPU memory, or pinned host memory")};
}

}  // namespace sluice::engine::cuda
