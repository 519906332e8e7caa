// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>

#include "base/descriptor.hpp"
#include "memory/cuda/service_stream.hpp"
#include "memory/cuda/shared_allocation.hpp"
#include "sluice/status.hpp"

namespace sluice::memory {

/// GPU memory that a network's adapter may read and write by itself. Empty as constructed.
///
/// The destructor unmaps: no adapter, and no work on the GPU, may use the memory any more.
class NetworkMemory {
 public:
  NetworkMemory() = default;

  /// Memory of `device`, mapped for it alone, zero when this returns. Rounded up to the granularity; `bytes` is not 0.
  /// unavailable: the GPU or its driver has none of that kind, or cannot make its kernels see what an adapter wrote.
  static Result<NetworkMemory> create(int device, std::size_t bytes);

  int device() const noexcept { return device_; }
  /// A GPU's address: the host must not follow it.
  std::byte* base() const noexcept { return held_ != nullptr ? held_->base() : nullptr; }
  std::size_t bytes() const noexcept { return held_ != nullptr ? held_->bytes() : 0; }
  /// All of it, from its begin on; closed where the driver exports none.
  const base::Descriptor& dmabuf() const noexcept { return dmabuf_; }

  /// What adapters have written by now is seen by kernels of the GPU that begin, or look, after this: by itself on GPUs that
  /// keep the order of such writes, else by the driver (cuFlushGPUDirectRDMAWrites). By any thread.
  Status flush() const;

  /// Between such memory and the host's, either way; waits for that alone. False: it failed.
  static bool copy(int device, std::byte* to, const std::byte* from, std::size_t bytes);

 private:
  int device_ = -1;
  bool ordered_ = false;
  std::shared_ptr<ServiceStream> stream_;  // For copy().
  std::unique_ptr<SharedAllocation> held_;
  base::Descriptor dmabuf_;
};

}  // namespace sluice::memory
