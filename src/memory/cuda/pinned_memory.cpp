// SPDX-License-Identifier: MIT
#include "memory/cuda/pinned_memory.hpp"

#include <cuda_runtime_api.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "memory/cuda/cuda_status.hpp"

namespace sluice::memory {
namespace {

constexpr std::size_t kPageBytes = 4096;

/// Pieces that nobody uses. Never destroyed, like the memory: CUDA may be gone by then.
struct Free {
  std::mutex mutex;
  std::vector<std::byte*> pieces;
};
Free& free_pieces() {
  static Free* const free = new Free;
  return *free;
}

}  // namespace

Result<std::shared_ptr<void>> take_pinned() {
  Free& free = free_pieces();
  std::byte* piece = nullptr;
  {
    const std::lock_guard<std::mutex> lock(free.mutex);
    if (free.pieces.empty()) {
      void* page = nullptr;
      if (Status status = cuda_status(
              cudaHostAlloc(&page, kPageBytes, cudaHostAllocMapped | cudaHostAllocPortable),
              "pinned host memory");
          !status.ok()) {
        return status;
      }
      for (std::size_t at = 0; at < kPageBytes; at += kPinnedBytes) {
        free.pieces.push_back(static_cast<std::byte*>(page) + at);
      }
    }
    piece = free.pieces.back();
    free.pieces.pop_back();
  }
  std::memset(piece, 0, kPinnedBytes);
  return std::shared_ptr<void>(piece, [](void* at) {
    Free& pieces = free_pieces();
    const std::lock_guard<std::mutex> lock(pieces.mutex);
    pieces.pieces.push_back(static_cast<std::byte*>(at));
  });
}

}  // namespace sluice::memory
