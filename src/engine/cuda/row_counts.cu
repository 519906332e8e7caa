// SPDX-License-Identifier: MIT
#include "engine/cuda/row_counts.cuh"

/// A kernel of its own after a dispatch in latency mode, since few are asked for it.
namespace sluice::engine::cuda {
namespace {

/// One block.
__global__ void __launch_bounds__(kBlockThreads)
    row_counts_kernel(__grid_constant__ Parameter<DispatchArgs> a,
                      __grid_constant__ Parameter<RowCounts> counts) {
  tell_row_counts(&a, &counts);
}

}  // namespace

int launch_row_counts(const DispatchArgs& args, const Launch& launch) {
  if (launch.row_counts.out == nullptr || args.handle == nullptr) return cudaSuccess;
  Launch own = launch;
  own.blocks = 1;
  own.overlap = false;
  DispatchArgs alone = args;
  alone.geometry.carriers = 0;
  return launch_kernel(row_counts_kernel, own, 0, alone, launch.row_counts);
}

int load_row_counts_kernel() {
  return load_kernel(row_counts_kernel, 0);
}

}  // namespace sluice::engine::cuda
