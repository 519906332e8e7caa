// SPDX-License-Identifier: MIT
#include "engine/cuda/row_counts.hpp"

#include "engine/cuda/handle_arrays.cuh"
#include "engine/cuda/operation.cuh"

/// A kernel of its own, since few dispatches are asked for it: in latency mode after the operation, in throughput mode before
/// its rows are moved.
namespace sluice::engine::cuda {
namespace {

/// One block.
__global__ void __launch_bounds__(kBlockThreads)
    row_counts_kernel(const __grid_constant__ RowCountsArgs a) {
  const HandleArrays handle{const_cast<std::byte*>(a.handle), &a.handle_layout};
  // Of a refused dispatch, or of another's handle, nothing has come.
  const bool known = !a.drop && read_brief(handle.header()).key == a.handle_key;
#pragma unroll 1
  for (int expert = static_cast<int>(threadIdx.x); expert < a.local_experts;
       expert += kBlockThreads) {
    a.out[2 + expert] = known ? handle.counts()[expert] : 0;
  }
  if (threadIdx.x == 0) a.out[1] = known ? handle.header()->rows : 0;
  __syncthreads();
  if (threadIdx.x != 0) return;
  fence_system();
  // Pairs with await_row_counts() of the host.
  store_release(reinterpret_cast<std::uint64_t*>(a.out), static_cast<std::uint64_t>(a.epoch));
}

}  // namespace

int launch_row_counts(const RowCountsArgs& args, const Launch& launch) {
  if (args.out == nullptr) return cudaSuccess;
  Launch own = launch;
  own.blocks = 1;
  own.overlap = false;
  return launch_kernel(row_counts_kernel, args, own, 0);
}

int load_row_counts_kernel() {
  return load_kernel(row_counts_kernel, 0);
}

}  // namespace sluice::engine::cuda
