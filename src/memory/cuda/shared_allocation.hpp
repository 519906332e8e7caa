// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>

#include "base/descriptor.hpp"
#include "sluice/status.hpp"

namespace sluice::memory {

/// What DeviceMemory holds: memory mapped for one GPU, in one of the ways that GPU memory can be
/// shared. The destructor unmaps.
class SharedAllocation {
 public:
  SharedAllocation() = default;
  virtual ~SharedAllocation() = default;
  SharedAllocation(const SharedAllocation&) = delete;
  SharedAllocation& operator=(const SharedAllocation&) = delete;

  virtual std::byte* base() const noexcept = 0;
  virtual std::size_t bytes() const noexcept = 0;
  virtual Result<base::Descriptor> share() const = 0;
};

using OwnedAllocation = Result<std::unique_ptr<SharedAllocation>>;

}  // namespace sluice::memory
