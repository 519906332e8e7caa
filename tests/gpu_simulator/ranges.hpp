// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

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
  /// file: a descriptor of memory that adapters of a network reach, or below zero.
  void insert(const void* at, std::size_t bytes, cudaMemoryType type, int file = -1) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranges_[address(at)] = {bytes, type, current_device(), file};
  }
  void erase(const void* at) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranges_.erase(address(at));
  }
  cudaPointerAttributes find(const void* at) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Range* const range = range_of(at);
    if (range == nullptr) return {cudaMemoryTypeUnregistered, -1, nullptr};
    return {range->type, range->device, const_cast<void*>(at)};
  }
  /// Of memory that adapters of a network reach; else below zero.
  int file_of(const void* at) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Range* const range = range_of(at);
    return range == nullptr ? -1 : range->file;
  }

 private:
  struct Range {
    std::size_t bytes;
    cudaMemoryType type;
    int device;
    int file;
  };
  const Range* range_of(const void* at) const {
    auto range = ranges_.upper_bound(address(at));
    if (range == ranges_.begin()) return nullptr;
    --range;
    return address(at) - range->first < range->second.bytes ? &range->second : nullptr;
  }
  static std::uintptr_t address(const void* at) noexcept {
    return reinterpret_cast<std::uintptr_t>(at);
  }

  std::mutex mutex_;
  std::map<std::uintptr_t, Range> ranges_;
};

/// What adapters of a network have written into memory of GPUs, which do not see it before it is flushed. Never destroyed.
class NetworkWrites {
 public:
  static NetworkWrites& instance() {
    static NetworkWrites* const writes = new NetworkWrites;
    return *writes;
  }
  void add(int device, void* to, const void* from, std::size_t bytes) {
    const auto* const first = static_cast<const unsigned char*>(from);
    const std::lock_guard<std::mutex> lock(mutex_);
    pending_.push_back({device, to, {first, first + bytes}});
  }
  /// What was written there is not to be seen any more.
  void forget(const void* at, std::size_t bytes) {
    const auto* const first = static_cast<const unsigned char*>(at);
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Write& write : pending_) {
      if (write.to >= first && write.to < first + bytes) write.bytes.clear();
    }
  }
  /// Those into memory of one GPU.
  void flush(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(pending_, [device](const Write& write) {
      if (write.device != device) return false;
      if (!write.bytes.empty()) std::memcpy(write.to, write.bytes.data(), write.bytes.size());
      return true;
    });
  }

 private:
  struct Write {
    int device;
    void* to;
    std::vector<unsigned char> bytes;
  };
  std::mutex mutex_;
  std::vector<Write> pending_;
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
