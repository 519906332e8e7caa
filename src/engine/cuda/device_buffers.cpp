// SPDX-License-Identifier: MIT
#include "engine/cuda/device_buffers.hpp"

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

  std::shared_ptr<void> memory = pool_->take(bytes);
  if (memory != nullptr) buffers_.push_back({memory, bytes});
  return memory;
}

}  // namespace sluice::engine::cuda
