// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "engine/cuda/ptx.cuh"
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
  __device__ std::int32_t* record_numbers() const {
    return at<std::int32_t>(layout->record_numbers());
  }

 private:
  template <typename T>
  __device__ T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(base + offset);
  }
};

/// What the host cannot see of a handle in device memory.
__device__ __forceinline__ window::HandleBrief read_brief(const window::HandleHeader* header) {
  const auto* const words = reinterpret_cast<const uint4*>(&header->brief);
  const uint4 first = load_now(words);
  const uint4 second = load_now(words + 1);
  window::HandleBrief brief;
  brief.key = first.x;
  brief.dispatch = first.y;
  brief.records = first.z;
  brief.tokens = first.w & 0xFFFFFFU;
  brief.layout = first.w >> 24;
  brief.rows = static_cast<std::int64_t>(second.x | std::uint64_t{second.y} << 32);
  brief.capacity = static_cast<std::int64_t>(second.z | std::uint64_t{second.w} << 32);
  return brief;
}

}  // namespace sluice::engine::cuda
