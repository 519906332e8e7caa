// SPDX-License-Identifier: MIT
#include "engine/cuda/device_buffers.hpp"

#include <algorithm>

#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/device_guard.hpp"

namespace sluice::engine::cuda {

std::shared_ptr<void> DeviceBuffers::take(std::size_t bytes) {
  // The smallest that is free and large enough.
  const Buffer* best = nullptr;
  for (const Buffer& buffer : buffers_) {
    if (buffer.memory.use_count() == 1 && buffer.bytes >= bytes &&
        (best == nullptr || buffer.bytes < best->bytes)) {
      best = &buffer;
    }
  }
  if (best != nullptr) return best->memory;

  const memory::DeviceGuard guard(device_);
  void* memory = nullptr;
  if (!memory::cuda_status(cudaMalloc(&memory, std::max<std::size_t>(bytes, 1)), "buffer").ok()) {
    return nullptr;
  }
  buffers_.push_back({std::shared_ptr<void>(memory, [](void* at) { (void)cudaFree(at); }), bytes});
  return buffers_.back().memory;
}

}  // namespace sluice::engine::cuda
