// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>

#include "memory/cuda/network_memory.hpp"
#include "transport/network.hpp"

namespace sluice::engine::cuda {

/// The memory of rows that go to and come from other nodes (window::FarLanes).
class FarRows {
 public:
  FarRows() = default;
  /// In GPU memory, registered with the endpoint, where the network reaches it and `wanted` allows; else in pinned host
  /// memory. The region becomes the endpoint's next. `device` is the current GPU.
  static Result<FarRows> take(transport::Endpoint& endpoint,
                              transport::RelaySettings::GpuRows wanted, int rank, int device,
                              std::size_t bytes);

  /// As the GPU sees it.
  std::byte* base() const noexcept { return seen_; }
  /// Before kernels look for rows that have arrived.
  Status flush() const { return of_gpu_.base() != nullptr ? of_gpu_.flush() : Status(); }

 private:
  Status take_of_gpu(transport::Endpoint& endpoint, int device, std::size_t bytes);
  Status take_pinned(transport::Endpoint& endpoint, std::size_t bytes);

  std::byte* seen_ = nullptr;
  memory::NetworkMemory of_gpu_;
  std::shared_ptr<void> pinned_;
};

}  // namespace sluice::engine::cuda
