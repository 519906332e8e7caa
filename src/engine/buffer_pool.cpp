// SPDX-License-Identifier: MIT
#include "engine/buffer_pool.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace sluice::engine {

std::shared_ptr<void> BufferPool::take(std::size_t bytes) {
  try {
    return find(bytes);
  } catch (const std::bad_alloc&) {  // For what there is to a buffer beside its pages.
    return nullptr;
  }
}

std::shared_ptr<void> BufferPool::find(std::size_t bytes) {
  std::shared_ptr<memory::Mapping>* best = nullptr;
  std::shared_ptr<memory::Mapping>* too_small = nullptr;
  for (auto& buffer : buffers_) {
    if (buffer.use_count() != 1) continue;
    if (buffer->bytes() < bytes) {
      too_small = &buffer;
    } else if (best == nullptr || buffer->bytes() < (*best)->bytes()) {
      best = &buffer;
    }
  }
  if (best == nullptr) {
    // A free buffer that became too small makes room for the larger one.
    Result<memory::Mapping> made =
        memory::Mapping::anonymous(std::max<std::size_t>(bytes, 1), /*committed=*/false);
    if (!made) return nullptr;
    auto fresh = std::make_shared<memory::Mapping>(std::move(made).value());
    if (too_small != nullptr) {
      *too_small = std::move(fresh);
      best = too_small;
    } else {
      best = &buffers_.emplace_back(std::move(fresh));
    }
  }
  return {*best, (*best)->base()};
}

}  // namespace sluice::engine
