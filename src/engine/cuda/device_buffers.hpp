// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace sluice::engine::cuda {

/// GPU memory that is taken without waiting for kernels, which may spin for another rank of this
/// process. It goes back by cudaFree, which does wait. Null if there is none.
class DeviceAllocator {
 public:
  explicit DeviceAllocator(int device) noexcept : device_(device) {}
  ~DeviceAllocator();
  DeviceAllocator(const DeviceAllocator&) = delete;
  DeviceAllocator& operator=(const DeviceAllocator&) = delete;

  void* allocate(std::size_t bytes);

 private:
  int device_;
  void* pool_ = nullptr;    // cudaMemPool_t
  void* stream_ = nullptr;  // cudaStream_t; nothing runs there.
};

/// Buffers of GPU memory that are handed out and come back by themselves, as engine::BufferPool's: a
/// buffer is free when nobody but the pool holds it, and is used again by work queued later.
class DeviceBuffers {
 public:
  explicit DeviceBuffers(DeviceAllocator& allocator) noexcept : allocator_(&allocator) {}
  /// At least `bytes` bytes, or null when there is no memory.
  std::shared_ptr<void> take(std::size_t bytes);

 private:
  struct Buffer {
    std::shared_ptr<void> memory;
    std::size_t bytes = 0;
  };

  DeviceAllocator* allocator_;
  std::vector<Buffer> buffers_;
};

}  // namespace sluice::engine::cuda
