// SPDX-License-Identifier: MIT
#include "engine/cuda/device_buffers.hpp"

#include <algorithm>

#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/device_guard.hpp"

namespace sluice::engine::cuda {

DeviceAllocator::~DeviceAllocator() {
  if (stream_ != nullptr) (void)cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
  // What is still in use goes back with its last cudaFree.
  if (pool_ != nullptr) (void)cudaMemPoolDestroy(static_cast<cudaMemPool_t>(pool_));
}

void* DeviceAllocator::allocate(std::size_t bytes) {
  const memory::DeviceGuard guard(device_);
  if (pool_ == nullptr) {
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, device_};
    cudaMemPool_t pool = nullptr;
    if (!memory::cuda_status(cudaMemPoolCreate(&pool, &properties), "memory pool").ok()) {
      return nullptr;
    }
    pool_ = pool;
  }
  if (stream_ == nullptr) {
    cudaStream_t stream = nullptr;
    if (!memory::cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream")
             .ok()) {
      return nullptr;
    }
    stream_ = stream;
  }
  const auto stream = static_cast<cudaStream_t>(stream_);
  void* memory = nullptr;
  const bool taken =
      memory::cuda_status(cudaMallocFromPoolAsync(&memory, std::max<std::size_t>(bytes, 1),
                                                  static_cast<cudaMemPool_t>(pool_), stream),
                          "buffer")
          .ok() &&
      memory::cuda_status(cudaStreamSynchronize(stream), "buffer").ok();
  return taken ? memory : nullptr;
}

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

  void* const memory = allocator_->allocate(bytes);
  if (memory == nullptr) return nullptr;
  buffers_.push_back({std::shared_ptr<void>(memory, [](void* at) { (void)cudaFree(at); }), bytes});
  return buffers_.back().memory;
}

}  // namespace sluice::engine::cuda
