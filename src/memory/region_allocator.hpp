// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <map>
#include <optional>

namespace sluice::memory {

/// First-fit allocation of offsets within a region of fixed size. Blocks are multiples of 64 bytes;
/// neighbours that become free are merged. Not thread-safe.
class RegionAllocator {
 public:
  explicit RegionAllocator(std::size_t bytes = 0);

  /// Offset of a free block of at least `bytes` bytes, or nothing.
  std::optional<std::size_t> allocate(std::size_t bytes);
  /// False if `offset` was not handed out.
  bool deallocate(std::size_t offset);
  std::size_t largest_free() const;

 private:
  std::map<std::size_t, std::size_t> free_;  // offset -> bytes
  std::map<std::size_t, std::size_t> used_;
};

}  // namespace sluice::memory
