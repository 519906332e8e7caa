// SPDX-License-Identifier: MIT
#include "memory/region_allocator.hpp"

#include <algorithm>
#include <iterator>

namespace sluice::memory {
namespace {
constexpr std::size_t kBlock = 64;
}

RegionAllocator::RegionAllocator(std::size_t bytes) {
  const std::size_t whole = bytes / kBlock * kBlock;
  if (whole > 0) free_.emplace(0, whole);
}

std::optional<std::size_t> RegionAllocator::allocate(std::size_t bytes) {
  if (bytes > static_cast<std::size_t>(-1) - kBlock) return std::nullopt;
  const std::size_t wanted = std::max(kBlock, (bytes + kBlock - 1) / kBlock * kBlock);
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [wanted](const auto& block) { return block.second >= wanted; });
  if (found == free_.end()) return std::nullopt;
  const auto [offset, available] = *found;
  free_.erase(found);
  if (available > wanted) free_.emplace(offset + wanted, available - wanted);
  used_.emplace(offset, wanted);
  return offset;
}

bool RegionAllocator::deallocate(std::size_t offset) {
  const auto found = used_.find(offset);
  if (found == used_.end()) return false;
  auto block = free_.emplace(offset, found->second).first;
  used_.erase(found);
  if (const auto next = std::next(block);
      next != free_.end() && block->first + block->second == next->first) {
    block->second += next->second;
    free_.erase(next);
  }
  if (block != free_.begin()) {
    const auto previous = std::prev(block);
    if (previous->first + previous->second == block->first) {
      previous->second += block->second;
      free_.erase(block);
    }
  }
  return true;
}

std::size_t RegionAllocator::largest_free() const {
  std::size_t largest = 0;
  for (const auto& [offset, bytes] : free_) largest = std::max(largest, bytes);
  return largest;
}

}  // namespace sluice::memory
