// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

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
    if (memory == nullptr || memory == last_) return memory;
    Status checked = check(memory);
    if (checked.ok()) {
      last_ = memory;
      return memory;
    }
    if (status.ok()) status = std::move(checked);
    return nullptr;
  }

 private:
  Status check(const void* memory) const;

  const char* name_;
  bool read_by_host_;
  const void* last_ = nullptr;  // That was found good: asking takes time.
};

}  // namespace sluice::engine::cuda
