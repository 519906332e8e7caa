// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "gpu_simulator/device_list.hpp"

/// What CUDA's runtime and its driver both know of the simulated GPUs' memory.
namespace gpu_simulator {

inline constexpr std::size_t kTotalBytes = std::size_t{16} << 30;

/// Memory that CUDA knows. Never destroyed.
class Ranges {
 public:
  static Ranges& instance() {
    static Ranges* const ranges = new Ranges;
    return *ranges;
  }
  void insert(const void* at, std::size_t bytes, cudaMemoryType type) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranges_[address(at)] = {bytes, type, current_device()};
  }
  void erase(const void* at) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranges_.erase(address(at));
  }
  cudaPointerAttributes find(const void* at) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto range = ranges_.upper_bound(address(at));
    if (range == ranges_.begin()) return {cudaMemoryTypeUnregistered, -1, nullptr};
    --range;
    const Range& found = range->second;
    if (address(at) - range->first >= found.bytes) return {cudaMemoryTypeUnregistered, -1, nullptr};
    return {found.type, found.device, const_cast<void*>(at)};
  }

 private:
  struct Range {
    std::size_t bytes;
    cudaMemoryType type;
    int device;
  };
  static std::uintptr_t address(const void* at) noexcept {
    return reinterpret_cast<std::uintptr_t>(at);
  }

  std::mutex mutex_;
  std::map<std::uintptr_t, Range> ranges_;
};

/// What a handle of memory says that is only bytes.
struct BlockHandle {
  pid_t owner;
  int file;
  std::size_t bytes;
};
/// A descriptor of the file in memory that it is, or below zero.
int open_block(const BlockHandle& what);

}  // namespace gpu_simulator
