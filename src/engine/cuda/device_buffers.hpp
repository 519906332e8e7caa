// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "memory/cuda/device_pool.hpp"

namespace sluice::engine::cuda {

/// Buffers of GPU memory that are handed out and come back by themselves, as engine::BufferPool's: a
/// buffer is free when nobody but this holds it, and is used again by work queued later.
class DeviceBuffers {
 public:
  explicit DeviceBuffers(std::shared_ptr<memory::DevicePool> pool) noexcept
      : pool_(std::move(pool)) {}
  /// At least `bytes` bytes, or null when there is no memory.
  std::shared_ptr<void> take(std::size_t bytes);

 private:
  struct Buffer {
    std::shared_ptr<void> memory;
    std::size_t bytes = 0;
  };

  std::shared_ptr<memory::DevicePool> pool_;
  std::vector<Buffer> buffers_;
};

}  // namespace sluice::engine::cuda
