// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <limits>

namespace sluice::memory {

/// Bytes of one page of this machine, a power of two.
std::size_t page_bytes() noexcept;

/// Bytes of a huge page, where there are any and others have 4096. Mappings of at least as much start at a multiple of it.
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

/// What a mapping of `bytes` takes: whole pages. 0 stays 0; what would overflow becomes the largest
/// multiple of a page, which no machine can map.
inline std::size_t rounded_to_pages(std::size_t bytes) noexcept {
  const std::size_t page = page_bytes();
  if (bytes > std::numeric_limits<std::size_t>::max() - (page - 1)) {
    return std::numeric_limits<std::size_t>::max() & ~(page - 1);
  }
  return (bytes + page - 1) & ~(page - 1);
}

}  // namespace sluice::memory
