// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "memory/mapping.hpp"

namespace sluice::engine {

/// Page-aligned buffers that are handed out and come back by themselves: a buffer is free when
/// nobody but the pool holds it. Memory is taken when it is touched, by the huge page where the
/// system gives them. Once every size in use has been seen, take() allocates nothing. Buffers are released on the communicator's thread, or
/// before its next call in the sense of memory ordering.
class BufferPool {
 public:
  /// At least `bytes` bytes, or null when there is no memory.
  std::shared_ptr<void> take(std::size_t bytes);

 private:
  std::shared_ptr<void> find(std::size_t bytes);

  std::vector<std::shared_ptr<memory::Mapping>> buffers_;
};

}  // namespace sluice::engine
