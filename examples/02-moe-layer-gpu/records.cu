// SPDX-License-Identifier: MIT
#include "arithmetic.cuh"
#include "kernels.hpp"

namespace moe {
namespace {

constexpr int kThreads = 256;
constexpr int kTopKMax = 32;

/// A block for a record. Which row of its expert a record gets depends on which block comes first;
/// what becomes of it there does not, since every row is computed by itself.
__global__ void __launch_bounds__(kThreads)
    sort_kernel(Records records, Groups groups, const Bf16* rows, Bf16* sorted, std::int32_t* slots,
                std::int32_t* taken) {
  __shared__ std::int64_t slot_of[kTopKMax];
  const std::int64_t record = blockIdx.x;
  if (record >= *records.count) return;  // The whole block.
  const int k = static_cast<int>(threadIdx.x);
  if (k < records.top_k) {
    const std::int64_t at = record * records.top_k + k;
    const int expert = records.local_ids[at];
    // The experts of a token differ from each other, so that counts tells how many records come
    // here.
    const std::int64_t slot =
        expert < 0 ? -1 : groups.offsets[expert] + atomicAdd(&taken[expert], 1);
    slot_of[k] = slot;
    slots[at] = static_cast<std::int32_t>(slot);
  }
  __syncthreads();
  // A row is a multiple of 32 bytes.
  const int words =
      records.hidden * static_cast<int>(sizeof(Bf16)) / static_cast<int>(sizeof(uint4));
  const uint4* const from = reinterpret_cast<const uint4*>(rows) + record * words;
  for (int route = 0; route < records.top_k; ++route) {
    if (slot_of[route] < 0) continue;
    uint4* const to = reinterpret_cast<uint4*>(sorted) + slot_of[route] * words;
    for (int i = k; i < words; i += kThreads) to[i] = from[i];
  }
}

/// A block for a record. The sum that Sluice documents for reduce = rank, which in rank_major the
/// caller forms: one chain of fused multiply-adds over k from +0, rounded once.
__global__ void __launch_bounds__(kThreads)
    sum_kernel(Records records, const Bf16* results, const std::int32_t* slots, Bf16* y) {
  const std::int64_t record = blockIdx.x;
  if (record >= *records.count) return;
  slots += record * records.top_k;
  const float* const weights = records.local_weights + record * records.top_k;
  for (int i = static_cast<int>(threadIdx.x); i < records.hidden; i += kThreads) {
    float sum = 0.0F;
    for (int k = 0; k < records.top_k; ++k) {
      if (slots[k] < 0) continue;
      const std::int64_t at = static_cast<std::int64_t>(slots[k]) * records.hidden + i;
      sum = __fmaf_rn(weights[k], device_to_float(results[at]), sum);
    }
    y[record * records.hidden + i] = device_to_bf16(sum);
  }
}

}  // namespace

cudaError_t sort_by_expert(const Records& records, const Groups& groups, const Bf16* rows,
                           Bf16* sorted, std::int32_t* slots, std::int32_t* taken,
                           cudaStream_t stream) {
  if (groups.groups == 0 || records.most == 0) return cudaSuccess;
  const std::size_t bytes = static_cast<std::size_t>(groups.groups) * sizeof(std::int32_t);
  if (const cudaError_t error = cudaMemsetAsync(taken, 0, bytes, stream); error != cudaSuccess) {
    return error;
  }
  sort_kernel<<<static_cast<unsigned>(records.most), kThreads, 0, stream>>>(records, groups, rows,
                                                                            sorted, slots, taken);
  return cudaGetLastError();
}

cudaError_t sum_by_record(const Records& records, const Bf16* results, const std::int32_t* slots,
                          Bf16* y, cudaStream_t stream) {
  if (records.most == 0) return cudaSuccess;
  sum_kernel<<<static_cast<unsigned>(records.most), kThreads, 0, stream>>>(records, results, slots,
                                                                           y);
  return cudaGetLastError();
}

}  // namespace moe
