// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/descriptor.hpp"
#include "memory/cuda/shared_allocation.hpp"
#include "sluice/status.hpp"

namespace sluice::memory {

/// How GPU memory is shared: as vmm_memory.hpp (vmm: files) or ipc_memory.hpp say. `best`: what SLUICE_CUDA_MEMORY
/// names, else vmm where there is it, else ipc. Ranks may differ in it.
enum class Sharing : std::uint8_t { best, vmm, ipc, fabric };

/// GPU memory that other processes, and other GPUs, can map; handed over as file descriptors. Owns its
/// mapping; the memory goes when nobody maps it any more and no descriptor is open (which does not count with fabric).
/// Empty for 0 bytes.
///
/// The destructor unmaps: no work that uses the memory may be under way on the GPU.
class DeviceMemory {
 public:
  DeviceMemory() = default;

  /// Memory of `device`, mapped for it alone, every byte `fill` when this returns. Rounded up to the
  /// granularity. unavailable: no driver, no GPU, or none that can share memory.
  static Result<DeviceMemory> create(int device, std::size_t bytes, unsigned char fill,
                                     Sharing sharing = Sharing::best);
  /// Maps for `device` what another rank, of this or another process, created on this or another GPU
  /// and shared as `file`. `bytes`: as given to its create(), or any less. The descriptor may be
  /// closed afterwards. unavailable: `device` cannot reach that memory.
  static Result<DeviceMemory> import(int device, const base::Descriptor& file, std::size_t bytes);

  /// A new descriptor of the memory, for import(); closed where there are 0 bytes.
  Result<base::Descriptor> share() const;

  int device() const noexcept { return device_; }
  /// A GPU's address: the host must not follow it.
  std::byte* base() const noexcept { return held_ != nullptr ? held_->base() : nullptr; }
  /// As mapped: a multiple of the granularity.
  std::size_t bytes() const noexcept { return held_ != nullptr ? held_->bytes() : 0; }

  /// Of what `best` is.
  static Result<std::size_t> granularity(int device);

 private:
  explicit DeviceMemory(int device) noexcept : device_(device) {}

  int device_ = -1;
  std::unique_ptr<SharedAllocation> held_;
};

}  // namespace sluice::memory
