// SPDX-License-Identifier: MIT
#include "arithmetic.cuh"
#include "kernels.hpp"

namespace moe {
namespace {

// A block computes a square tile of c, a thread 16 elements of it. Tiles of a and b pass through
// shared memory, widened to f32.
constexpr int kTile = 64;
constexpr int kDepth = 16;
constexpr int kThreads = 256;
constexpr int kAcross = 16;             // threads along a row of the tile
constexpr int kEach = kTile / kAcross;  // elements of a thread, in both directions

struct Tiles {
  float a[kDepth][kTile + 1];  // One more, so that a column does not lie in one bank.
  float b[kDepth][kTile];
};

/// Zeros beyond the ends of a and b. Those beyond the depth change no sum: a sum that began at +0
/// never is -0.
__device__ void load_tiles(const Bf16* a, const Bf16* b, int rows, int columns, int depth, int k0,
                           int column0, Tiles& tiles) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kThreads) {
    const int row = i / kDepth;
    const int k = i % kDepth;
    const bool exists = row < rows && k0 + k < depth;
    const std::size_t at = static_cast<std::size_t>(row) * depth + (k0 + k);
    tiles.a[k][row] = exists ? device_to_float(a[at]) : 0.0F;
  }
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kThreads) {
    const int k = i / kTile;
    const int column = column0 + i % kTile;
    const bool exists = k0 + k < depth && column < columns;
    const std::size_t at = static_cast<std::size_t>(k0 + k) * columns + column;
    tiles.b[k][i % kTile] = exists ? device_to_float(b[at]) : 0.0F;
  }
}

/// One more step of every element's chain. A product of two bf16 numbers is exact in f32, so that
/// this fused multiply-add gives the bits of a product and a sum.
__device__ void multiply(const Tiles& tiles, int y, int x, float (&sum)[kEach][kEach]) {
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float factor = tiles.a[k][y + i * kAcross];
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        sum[i][j] = __fmaf_rn(factor, tiles.b[k][x + j * kAcross], sum[i][j]);
      }
    }
  }
}

__device__ void store(float value, float* to) {
  *to = value;
}
__device__ void store(float value, Bf16* to) {
  *to = device_to_bf16(value);
}

template <typename Out>
__global__ void __launch_bounds__(kThreads)
    matmul_kernel(Groups groups, const Bf16* a, const Bf16* b, Out* c, int depth, int columns) {
  __shared__ Tiles tiles;
  const int group = static_cast<int>(blockIdx.z);
  const int row0 = static_cast<int>(blockIdx.y) * kTile;
  const int column0 = static_cast<int>(blockIdx.x) * kTile;
  // The grid has room for the most rows; most groups have fewer. The same for all threads of a
  // block.
  const int count = groups.counts == nullptr ? groups.rows_max : groups.counts[group];
  const int rows = min(count, groups.rows_max) - row0;
  if (rows <= 0) return;
  const std::int64_t first = (groups.offsets == nullptr ? 0 : groups.offsets[group]) + row0;
  a += first * depth;
  b += static_cast<std::int64_t>(group) * depth * columns;
  c += first * columns;

  const int x = static_cast<int>(threadIdx.x) % kAcross;
  const int y = static_cast<int>(threadIdx.x) / kAcross;
  float sum[kEach][kEach] = {};
  for (int k0 = 0; k0 < depth; k0 += kDepth) {
    load_tiles(a, b, rows, columns, depth, k0, column0, tiles);
    __syncthreads();
    multiply(tiles, y, x, sum);
    __syncthreads();
  }
  for (int i = 0; i < kEach; ++i) {
    const int row = y + i * kAcross;
    for (int j = 0; j < kEach; ++j) {
      const int column = column0 + x + j * kAcross;
      if (row >= rows || column >= columns) continue;
      store(sum[i][j], c + static_cast<std::int64_t>(row) * columns + column);
    }
  }
}

unsigned tiles_of(int extent) {
  return static_cast<unsigned>((extent + kTile - 1) / kTile);
}

template <typename Out>
cudaError_t launch(const Groups& groups, const Bf16* a, const Bf16* b, Out* c, int depth,
                   int columns, cudaStream_t stream) {
  if (groups.groups == 0 || groups.rows_max == 0) return cudaSuccess;
  const dim3 grid(tiles_of(columns), tiles_of(groups.rows_max),
                  static_cast<unsigned>(groups.groups));
  matmul_kernel<<<grid, kThreads, 0, stream>>>(groups, a, b, c, depth, columns);
  return cudaGetLastError();
}

}  // namespace

cudaError_t matmul(const Groups& groups, const Bf16* a, const Bf16* b, float* c, int depth,
                   int columns, cudaStream_t stream) {
  return launch(groups, a, b, c, depth, columns, stream);
}

cudaError_t matmul(const Groups& groups, const Bf16* a, const Bf16* b, Bf16* c, int depth,
                   int columns, cudaStream_t stream) {
  return launch(groups, a, b, c, depth, columns, stream);
}

}  // namespace moe
