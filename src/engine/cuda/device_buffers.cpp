// SPDX-License-Identifier: MIT
#include "engine/cuda/device_buffers.hpp"

#include <algorithm>

namespace sluice::engine::cuda {

std::shared_ptr<void> DeviceBuffers::take(std::size_t bytes) {
  // The smallest that is free and large enough.
  const Buffer* best = nullptr;
  std::size_t too_small = 0;
  for (const Buffer& buffer : buffers_) {
    if (buffer.memory.use_count() != 1) continue;
    if (buffer.bytes < bytes) {
      too_small = std::max(too_small, buffer.bytes);
    } else if (best == nullptr || buffer.bytes < best->bytes) {
      best = &buffer;
    }
  }
  if (best != nullptr) return best->memory;

  // Those that are too small are kept, since kernels may still use them. Where calls grow, each buffer is half as large again as
  // the largest that is free: otherwise a little more each time would add up without end.
  for (const std::size_t size : {std::max(bytes, too_small + too_small / 2), bytes}) {
    std::shared_ptr<void> memory = pool_->take(size);
    if (memory == nullptr) continue;
    buffers_.push_back({memory, size});
    return memory;
  }
  return nullptr;
}

}  // namespace sluice::engine::cuda
