// SPDX-License-Identifier: MIT
#include "memory/cuda/service_stream.hpp"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>

#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/device_guard.hpp"

namespace sluice::memory {

Result<std::shared_ptr<ServiceStream>> ServiceStream::of(int device) {
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<ServiceStream>> all;
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<ServiceStream>& known = all[device];
  if (std::shared_ptr<ServiceStream> there = known.lock()) return there;
  const DeviceGuard guard(device);
  if (!guard.status().ok()) return guard.status();
  std::shared_ptr<ServiceStream> made(new ServiceStream(device));
  Status status =
      cuda_status(cudaStreamCreateWithFlags(&made->stream_, cudaStreamNonBlocking), "a stream");
  if (!status.ok()) return status;
  known = made;
  return made;
}

ServiceStream::~ServiceStream() {
  const DeviceGuard guard(device_);
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
}

}  // namespace sluice::memory
