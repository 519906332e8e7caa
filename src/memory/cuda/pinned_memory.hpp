// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>

#include "sluice/status.hpp"

namespace sluice::memory {

/// Bytes of one piece of pinned memory.
inline constexpr std::size_t kPinnedBytes = 256;

/// kPinnedBytes zeroed bytes of host memory that all GPUs can reach. Pieces are used again but never
/// unpinned: cudaFreeHost waits for the kernels of all GPUs, and one of them may spin until the calling
/// thread has launched its own.
Result<std::shared_ptr<void>> take_pinned();
/// Of so many bytes, what is taken.
constexpr std::size_t pinned_bytes(std::size_t bytes) {
  constexpr std::size_t kStep = std::size_t{2} << 20;
  return (bytes + kStep - 1) / kStep * kStep;
}
/// Likewise so many bytes. What is given back is kept for whoever asks for about as many.
Result<std::shared_ptr<void>> take_pinned(std::size_t bytes);

}  // namespace sluice::memory
