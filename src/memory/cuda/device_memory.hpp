// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/descriptor.hpp"
#include "sluice/status.hpp"

namespace sluice::memory {

/// GPU memory that other processes, and other GPUs, can map: the driver's virtual memory management,
/// handed over as file descriptors. Owns its mapping; the memory goes when nobody maps it any more
/// and no descriptor is open. Empty for 0 bytes.
///
/// The destructor unmaps: no work that uses the memory may be under way on the GPU.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    DeviceMemory(std::move(other)).swap(*this);
    return *this;
  }
  ~DeviceMemory();

  /// Memory of `device`, mapped for it alone, every byte `fill` when this returns. Rounded up to the
  /// granularity. unavailable: no driver, no GPU, or none that can share memory in this way.
  static Result<DeviceMemory> create(int device, std::size_t bytes, unsigned char fill);
  /// Maps for `device` what another rank, of this or another process, created on this or another GPU
  /// and shared as `file`. `bytes`: as given to its create(), or any less. The descriptor may be
  /// closed afterwards. unavailable: `device` cannot reach that memory.
  static Result<DeviceMemory> import(int device, const base::Descriptor& file, std::size_t bytes);

  /// A new descriptor of the memory, for import(); closed where there are 0 bytes.
  Result<base::Descriptor> share() const;

  int device() const noexcept { return device_; }
  /// A GPU's address: the host must not follow it.
  std::byte* base() const noexcept { return reinterpret_cast<std::byte*>(address_); }
  /// As mapped: a multiple of the granularity.
  std::size_t bytes() const noexcept { return bytes_; }

  static Result<std::size_t> granularity(int device);

 private:
  explicit DeviceMemory(int device) noexcept : device_(device) {}
  void swap(DeviceMemory& other) noexcept;
  Status map(std::size_t bytes, const char* what);

  int device_ = -1;
  std::uint64_t handle_ = 0;  // Of the driver; what follows is undone in the reverse order.
  std::uintptr_t address_ = 0;
  std::size_t bytes_ = 0;  // Reserved at address_.
  bool has_handle_ = false;
  bool mapped_ = false;
};

}  // namespace sluice::memory
