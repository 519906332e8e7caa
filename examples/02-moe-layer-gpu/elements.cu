// SPDX-License-Identifier: MIT
#include "arithmetic.cuh"
#include "kernels.hpp"

namespace moe {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    activate_kernel(Groups groups, const float* wide, Bf16* inner, int width) {
  const int group = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.x);
  const int count = groups.counts == nullptr ? groups.rows_max : groups.counts[group];
  if (row >= count) return;
  const std::int64_t at = (groups.offsets == nullptr ? 0 : groups.offsets[group]) + row;
  const float* const gate = wide + at * 2 * width;
  const float* const up = gate + width;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads) {
    inner[at * width + i] = device_to_bf16(device_silu(gate[i]) * up[i]);
  }
}

/// A block for a row. The host adds the squares up in one chain, and bits depend on that, so one
/// thread does the same here, out of shared memory.
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(const Bf16* x, Bf16* h, int hidden) {
  extern __shared__ Bf16 row[];
  __shared__ float scale;
  x += static_cast<std::int64_t>(blockIdx.x) * hidden;
  h += static_cast<std::int64_t>(blockIdx.x) * hidden;
  for (int i = static_cast<int>(threadIdx.x); i < hidden; i += kThreads) row[i] = x[i];
  __syncthreads();
  if (threadIdx.x == 0) {
    float squares = 0.0F;
#pragma unroll 16
    for (int i = 0; i < hidden; ++i) {
      const float value = device_to_float(row[i]);
      squares += value * value;
    }
    scale = 1.0F / sqrtf(squares / static_cast<float>(hidden) + 1e-6F);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < hidden; i += kThreads) {
    h[i] = device_to_bf16(device_to_float(row[i]) * scale);
  }
}

__global__ void __launch_bounds__(kThreads)
    add_kernel(const Bf16* x, const Bf16* update, Bf16* out, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) out[i] = device_to_bf16(device_to_float(x[i]) + device_to_float(update[i]));
}

}  // namespace

cudaError_t activate(const Groups& groups, const float* wide, Bf16* inner, int width,
                     cudaStream_t stream) {
  if (groups.groups == 0 || groups.rows_max == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(groups.rows_max), static_cast<unsigned>(groups.groups));
  activate_kernel<<<grid, kThreads, 0, stream>>>(groups, wide, inner, width);
  return cudaGetLastError();
}

cudaError_t rms_norm(const Bf16* x, Bf16* h, int tokens, int hidden, cudaStream_t stream) {
  if (tokens == 0) return cudaSuccess;
  // At most 32 KiB: options.cpp of example 01 allows rows of 16384 elements.
  const std::size_t shared = static_cast<std::size_t>(hidden) * sizeof(Bf16);
  rms_norm_kernel<<<static_cast<unsigned>(tokens), kThreads, shared, stream>>>(x, h, hidden);
  return cudaGetLastError();
}

cudaError_t add(const Bf16* x, const Bf16* update, Bf16* out, std::size_t count,
                cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  add_kernel<<<blocks, kThreads, 0, stream>>>(x, update, out, count);
  return cudaGetLastError();
}

}  // namespace moe
