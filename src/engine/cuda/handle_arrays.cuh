// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "window/handle_layout.hpp"

namespace sluice::engine::cuda {

/// The arrays of a handle in device memory.
struct HandleArrays {
  std::byte* base;
  const window::HandleLayout* layout;

  __device__ window::HandleHeader* header() const {
    return reinterpret_cast<window::HandleHeader*>(base);
  }
  __device__ std::int32_t* topk_ids() const { return at<std::int32_t>(layout->topk_ids); }
  __device__ float* topk_weights() const { return at<float>(layout->topk_weights); }
  __device__ std::int32_t* counts() const { return at<std::int32_t>(layout->counts); }
  __device__ std::int32_t* aligned_counts() const {
    return at<std::int32_t>(layout->aligned_counts);
  }
  __device__ std::int64_t* offsets() const { return at<std::int64_t>(layout->offsets); }
  __device__ std::int64_t* source_offsets() const {
    return at<std::int64_t>(layout->source_offsets);
  }
  __device__ std::int32_t* record_rank() const { return at<std::int32_t>(layout->record_rank); }
  __device__ std::int32_t* record_token() const { return at<std::int32_t>(layout->record_token); }
  __device__ std::int32_t* local_ids() const { return at<std::int32_t>(layout->local_ids); }
  __device__ float* local_weights() const { return at<float>(layout->local_weights); }
  __device__ std::int32_t* route_rows() const { return at<std::int32_t>(layout->route_rows); }

 private:
  template <typename T>
  __device__ T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(base + offset);
  }
};

/// What the host cannot see of a handle in device memory. Usable: this rank of this communicator made
/// it, and it was not refused.
struct HandleState {
  std::uint64_t dispatch = 0;
  int tokens = 0;
  int records = 0;
  std::int64_t rows = 0;
  std::int64_t capacity = 0;
  std::uint8_t layout = 0;
  bool usable = false;
};

__device__ __forceinline__ HandleState read_handle(const window::HandleHeader* header,
                                                   std::uint64_t fingerprint, int rank) {
  HandleState state;
  state.dispatch = header->dispatch;
  state.tokens = header->tokens;
  state.records = static_cast<int>(header->records);
  state.rows = header->rows;
  state.capacity = header->capacity;
  state.layout = header->layout;
  state.usable = header->magic == window::kHandleMagic && header->fingerprint == fingerprint &&
                 header->rank == rank && header->refused == 0;
  return state;
}

}  // namespace sluice::engine::cuda
