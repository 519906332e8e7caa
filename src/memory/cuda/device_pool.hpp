// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>

#include "memory/cuda/service_stream.hpp"
#include "sluice/status.hpp"

namespace sluice::memory {

/// Memory of one GPU that is taken and given back without waiting for kernels. Another rank of this
/// process may have a kernel there that spins until this thread has launched its own: cudaMalloc and
/// cudaFree could wait for it, until its deadline.
class DevicePool : public std::enable_shared_from_this<DevicePool> {
 public:
  static Result<std::shared_ptr<DevicePool>> create(int device);
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  /// Null if there is no memory. Work that uses it must have ended before the last owner lets go.
  std::shared_ptr<void> take(std::size_t bytes);
  /// Copies to or from memory of the GPU, or writes zeros where `from` is null. Waits for that alone.
  Status write(void* to, const void* from, std::size_t bytes);

 private:
  explicit DevicePool(int device) noexcept : device_(device) {}
  void give_back(void* memory) noexcept;

  int device_;
  void* pool_ = nullptr;  // cudaMemPool_t
  std::shared_ptr<ServiceStream> stream_;
};

}  // namespace sluice::memory
