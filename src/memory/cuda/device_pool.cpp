// SPDX-License-Identifier: MIT
#include "memory/cuda/device_pool.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/device_guard.hpp"

namespace sluice::memory {
namespace {

/// What follows is no part of a graph that this thread may be capturing on another stream.
class WhateverIsCaptured {
 public:
  WhateverIsCaptured() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~WhateverIsCaptured() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  WhateverIsCaptured(const WhateverIsCaptured&) = delete;
  WhateverIsCaptured& operator=(const WhateverIsCaptured&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

Result<std::shared_ptr<DevicePool>> DevicePool::create(int device) {
  const DeviceGuard guard(device);
  if (!guard.status().ok()) return guard.status();
  Result<std::shared_ptr<ServiceStream>> stream = ServiceStream::of(device);
  if (!stream) return stream.status();
  const std::shared_ptr<DevicePool> made(new DevicePool(device));
  made->stream_ = std::move(stream).value();
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, device};
  cudaMemPool_t pool = nullptr;
  if (Status status = cuda_status(cudaMemPoolCreate(&pool, &properties), "a pool of GPU memory");
      !status.ok()) {
    return status;
  }
  made->pool_ = pool;
  return made;
}

DevicePool::~DevicePool() {
  const DeviceGuard guard(device_);
  if (pool_ == nullptr) return;
  const WhateverIsCaptured capture;
  // What was given back has come back before the pool goes.
  const ServiceStream::Use use(*stream_);
  (void)cudaStreamSynchronize(use.get());
  (void)cudaMemPoolDestroy(static_cast<cudaMemPool_t>(pool_));
}

std::shared_ptr<void> DevicePool::take(std::size_t bytes) {
  const DeviceGuard guard(device_);
  const WhateverIsCaptured capture;
  void* memory = nullptr;
  bool there = false;
  {
    const ServiceStream::Use use(*stream_);
    const cudaError_t error = cudaMallocFromPoolAsync(&memory, std::max<std::size_t>(bytes, 1),
                                                      static_cast<cudaMemPool_t>(pool_), use.get());
    if (!cuda_status(error, "GPU memory").ok()) return nullptr;
    // The memory is there for other streams once this one has come so far.
    there = cuda_status(cudaStreamSynchronize(use.get()), "GPU memory").ok();
  }
  std::shared_ptr<void> taken(memory,
                              [self = shared_from_this()](void* at) { self->give_back(at); });
  return there ? taken : nullptr;
}

Status DevicePool::write(void* to, const void* from, std::size_t bytes) {
  const DeviceGuard guard(device_);
  const WhateverIsCaptured capture;
  const ServiceStream::Use use(*stream_);
  Status status = from == nullptr
                      ? cuda_status(cudaMemsetAsync(to, 0, bytes, use.get()), "GPU memory")
                      : cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, use.get()),
                                    "GPU memory");
  return status.ok() ? cuda_status(cudaStreamSynchronize(use.get()), "GPU memory") : status;
}

void DevicePool::give_back(void* memory) noexcept {
  const DeviceGuard guard(device_);
  const WhateverIsCaptured capture;
  const ServiceStream::Use use(*stream_);
  (void)cuda_status(cudaFreeAsync(memory, use.get()), "GPU memory");
}

}  // namespace sluice::memory
