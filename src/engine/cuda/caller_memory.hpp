// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "sluice/limits.hpp"
#include "sluice/status.hpp"

namespace sluice::engine::cuda {

/// Memory of the caller's that kernels write to: refused where they cannot.
class CallerMemory {
 public:
  /// name: of the argument, for messages. read_by_host: the host must be able to read it as well.
  CallerMemory(const char* name, bool read_by_host) noexcept
      : name_(name), read_by_host_(read_by_host) {}

  /// `memory`, or null if it cannot be used; then `status` says so, if nothing else is wrong. Null is fine.
  template <typename T>
  T* usable(T* memory, Status& status) {
    if (memory == nullptr || std::find(good_.begin(), good_.end(), memory) != good_.end()) {
      return memory;
    }
    Status checked = check(memory);
    if (checked.ok()) {
      good_[next_++ % good_.size()] = memory;
      return memory;
    }
    if (status.ok()) status = std::move(checked);
    return nullptr;
  }

 private:
  Status check(const void* memory) const;

  const char* name_;
  bool read_by_host_;
  // The latest that were found good: asking takes time. One for each operation in flight.
  std::array<const void*, kMaxInFlight> good_{};
  std::size_t next_ = 0;
};

}  // namespace sluice::engine::cuda
