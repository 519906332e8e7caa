// SPDX-License-Identifier: MIT
#include "memory/cuda/pinned_memory.hpp"

#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "memory/cuda/cuda_status.hpp"

namespace sluice::memory {
namespace {

constexpr std::size_t kPageBytes = 4096;

Result<void*> allocate(std::size_t bytes) {
  void* memory = nullptr;
  Status status =
      cuda_status(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
                  "pinned host memory");
  if (!status.ok()) return status;
  return memory;
}

/// Pieces that nobody uses. Never destroyed, like the memory: CUDA may be gone by then.
struct Free {
  std::mutex mutex;
  std::vector<std::byte*> pieces;
  std::multimap<std::size_t, std::byte*> large;  // By bytes.
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
      Result<void*> page = allocate(kPageBytes);
      if (!page) return page.status();
      for (std::size_t at = 0; at < kPageBytes; at += kPinnedBytes) {
        free.pieces.push_back(static_cast<std::byte*>(*page) + at);
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

Result<std::shared_ptr<void>> take_pinned(std::size_t bytes) {
  std::size_t whole = pinned_bytes(bytes);
  Free& free = free_pieces();
  std::byte* piece = nullptr;
  {
    const std::lock_guard<std::mutex> lock(free.mutex);
    // A larger one, too, if no more than half of it lies idle.
    const auto found = free.large.lower_bound(whole);
    if (found != free.large.end() && found->first <= 2 * whole) {
      whole = found->first;
      piece = found->second;
      free.large.erase(found);
    }
  }
  if (piece == nullptr) {
    Result<void*> memory = allocate(whole);
    if (!memory) return memory.status();
    piece = static_cast<std::byte*>(*memory);
  }
  std::memset(piece, 0, bytes);
  return std::shared_ptr<void>(piece, [whole](void* at) {
    Free& pieces = free_pieces();
    const std::lock_guard<std::mutex> lock(pieces.mutex);
    pieces.large.emplace(whole, static_cast<std::byte*>(at));
  });
}

}  // namespace sluice::memory
