// SPDX-License-Identifier: MIT
#include "engine/cuda/dispatch_keep.cuh"

/// A kernel of its own, since few dispatches are asked for it: in latency mode after the operation, in throughput mode before
/// its rows are moved.
namespace sluice::engine::cuda {
namespace {

/// Tells the host what a dispatch has brought, once its handle says so. One block.
__global__ void __launch_bounds__(kBlockThreads)
    row_counts_kernel(const __grid_constant__ DispatchArgs a,
                      const __grid_constant__ RowCounts counts) {
  const HandleArrays handle{a.handle, &a.handle_layout};
  // Of a call that was refused, here or by the host, nothing has come, whatever its handle says.
  const bool come =
      a.cached ? goes_along(&a) : read_brief(handle.header()).key == a.geometry.handle_key;
  const bool known = (come && !a.drop && !a.refused) || mutant(KernelMutant::refusal_counted);
#pragma unroll 1
  for (int expert = static_cast<int>(threadIdx.x); expert < a.geometry.local_experts;
       expert += kBlockThreads) {
    counts.out[2 + expert] = known ? handle.counts()[expert] : 0;
  }
  if (threadIdx.x == 0) counts.out[1] = known ? handle.header()->rows : 0;
  __syncthreads();
  if (threadIdx.x != 0) return;
  fence_system();
  // Pairs with await_row_counts() of the host.
  store_release(reinterpret_cast<std::uint64_t*>(counts.out), counts.epoch);
}

}  // namespace

int launch_row_counts(const DispatchArgs& args, const Launch& launch) {
  if (launch.row_counts.out == nullptr || args.handle == nullptr) return cudaSuccess;
  Launch own = launch;
  own.blocks = 1;
  own.overlap = false;
  return launch_kernel(row_counts_kernel, args, own, 0, launch.row_counts);
}

int load_row_counts_kernel() {
  return load_kernel(row_counts_kernel, 0);
}

}  // namespace sluice::engine::cuda
