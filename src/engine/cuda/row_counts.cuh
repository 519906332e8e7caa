// SPDX-License-Identifier: MIT
#pragma once

#include "engine/cuda/dispatch_keep.cuh"

namespace sluice::engine::cuda {

/// Tells the host what a dispatch has brought, once its handle says so. By a whole block.
static __device__ __noinline__ void tell_row_counts(const DispatchArgs* args,
                                                    const RowCounts* counts) {
  const DispatchArgs& a = *args;
  const HandleArrays handle{a.handle, &a.handle_layout};
  // Of a call that was refused, here or by the host, nothing has come, whatever its handle says.
  const bool come =
      a.cached ? goes_along(&a) : read_brief(handle.header()).key == a.geometry.handle_key;
  const bool known = (come && !a.drop && !a.refused) || mutant(KernelMutant::refusal_counted);
#pragma unroll 1
  for (int expert = static_cast<int>(threadIdx.x); expert < a.geometry.local_experts;
       expert += kBlockThreads) {
    counts->out[2 + expert] = known ? handle.counts()[expert] : 0;
  }
  if (threadIdx.x == 0) counts->out[1] = known ? handle.header()->rows : 0;
  __syncthreads();
  if (threadIdx.x != 0) return;
  fence_system();
  // Pairs with await_row_counts() of the host.
  store_release(reinterpret_cast<std::uint64_t*>(counts->out), counts->epoch);
}

}  // namespace sluice::engine::cuda
