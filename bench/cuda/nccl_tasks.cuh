// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include "nccl_kernels.hpp"

/// How the peer's kernels share their work: a warp for a unit of one item's row.
namespace sluice::bench::nccl {

inline constexpr int kThreads = 256;

struct Task {
  int item;
  int unit;
};

inline __device__ Task task_of(int units) {
  const int task =
      static_cast<int>(blockIdx.x) * (kThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  const int item = task / units;
  return {item, task - item * units};
}

inline __device__ int lane_of_thread() {
  return static_cast<int>(threadIdx.x) % 32;
}

/// The number of the index-th record of other ranks among all received.
inline __device__ int record_of(const Others& others, int index) {
  return index < others.own_first ? index : index + others.own_count;
}

inline __device__ const std::byte* record_at(const RecordForm& form, const std::byte* records,
                                             int record) {
  return records + std::int64_t{record} * form.stride;
}

/// Units of `elements` in a row.
inline __host__ __device__ int units_of(const RecordForm& form, int elements) {
  return (form.hidden + elements - 1) / elements;
}

template <typename Args>
int launch(void (*kernel)(const Args), const Args& args, int items, int units, void* stream) {
  const unsigned warps = static_cast<unsigned>(items) * static_cast<unsigned>(units);
  const unsigned blocks = (warps + kThreads / 32 - 1) / (kThreads / 32);
  if (blocks == 0) return cudaSuccess;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace sluice::bench::nccl
