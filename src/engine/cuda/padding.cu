// SPDX-License-Identifier: MIT
#include "engine/cuda/elements.cuh"
#include "engine/cuda/handle_arrays.cuh"
#include "engine/cuda/operation.cuh"

/// Zeroes the rows of a received tensor that hold nothing, on request, after the dispatch.
namespace sluice::engine::cuda {
namespace {

/// Whether row `row` is between segments or behind the last one.
__device__ bool is_padding(const DispatchArgs& a, const HandleArrays& handle, int row) {
  const window::HandleHeader& header = *handle.header();
  if (row >= header.rows) return true;
  if (a.layout == Layout::rank_major) return false;
  int expert = 0;
  if (a.layout == Layout::expert_slab) {
    expert = static_cast<int>(row / a.capacity);
  } else {  // The last expert whose segment begins at or before the row, and is not empty.
    int low = 0;
    int high = a.geometry.local_experts;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (handle.offsets()[middle] <= row ? low : high) = middle;
    }
    expert = low;
  }
  return row - handle.offsets()[expert] >= handle.counts()[expert];
}

__global__ void padding_kernel(const __grid_constant__ DispatchArgs a, int scale_words) {
  let_next_start();
  await_previous();
  const HandleArrays handle{a.handle, &a.handle_layout};
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / 32);
  const int warps = static_cast<int>(gridDim.x * blockDim.x / 32);
  for (int row = warp; row < a.stored_rows; row += warps) {
    if (!is_padding(a, handle, row)) continue;
    std::byte* const out = row_at(a.out, row);
    if (a.aligned) {
      for (int byte = lane * 16; byte < a.row_bytes; byte += 512) {
        store16(out + byte, make_uint4(0, 0, 0, 0));
      }
    } else {
      for (int byte = lane; byte < a.row_bytes; byte += 32) out[byte] = std::byte{0};
    }
    if (scale_words == 0) continue;
    std::byte* const scales = row_at(a.scales, row);
    for (int word = lane; word < scale_words; word += 32) {
      *reinterpret_cast<std::uint32_t*>(scales + word * a.scales.element_stride) = 0;
    }
  }
}

}  // namespace

int launch_padding(const DispatchArgs& args, int scale_words, const Launch& launch) {
  return launch_kernel(padding_kernel, args, launch, 0, scale_words);
}

int load_padding_kernel() {
  return load_kernel(padding_kernel);
}

}  // namespace sluice::engine::cuda
