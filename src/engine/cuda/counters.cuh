// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/packets.cuh"
#include "engine/cuda/waiting.cuh"

/// What is counted in GPU memory for Statistics. Nobody waits for it.
namespace sluice::engine::cuda {

/// Rows of a local expert in one dispatch. By one thread for every expert.
__device__ __forceinline__ void count_rows(const Geometry& g, int expert, int rows) {
  g.counters[Counters::step(expert)] = static_cast<unsigned long long>(rows);
  if (rows != 0) {
    atomicAdd(&g.counters[Counters::total(expert, g.local_experts)],
              static_cast<unsigned long long>(rows));
  }
}

/// Bytes stored in the memory of other ranks.
__device__ __forceinline__ void count_bytes(const Geometry& g, protocol::Kind kind,
                                            std::int64_t bytes) {
  atomicAdd(&g.counters[static_cast<int>(kind)], static_cast<unsigned long long>(bytes));
}

/// How long one thread has waited for a rank; 0: not long enough to be counted.
__device__ __forceinline__ void count_wait(const Geometry& g, int rank, std::uint64_t ns) {
  if (ns != 0) {
    atomicAdd(&g.counters[Counters::wait(rank, g.local_experts)],
              static_cast<unsigned long long>(ns));
  }
}

}  // namespace sluice::engine::cuda
