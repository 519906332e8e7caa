// SPDX-License-Identifier: MIT
#include <climits>

#include "arithmetic.cuh"
#include "kernels.hpp"

namespace moe {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 4;  // of a block
constexpr unsigned kAll = ~0U;

struct Candidate {
  float logit;
  int expert;
};

/// The order in which experts are chosen. An expert INT_MAX stands for none and comes last.
__device__ bool comes_before(const Candidate& a, const Candidate& b) {
  if (a.expert == INT_MAX || b.expert == INT_MAX) return b.expert == INT_MAX && a.expert != INT_MAX;
  return a.logit != b.logit ? a.logit > b.logit : a.expert < b.expert;
}

/// The first of all experts that come after `last`. By a warp; the same in every lane.
__device__ Candidate next_after(const float* logits, int experts, bool any, const Candidate& last) {
  Candidate best = {0.0F, INT_MAX};
  for (int expert = static_cast<int>(threadIdx.x); expert < experts; expert += kWarp) {
    const Candidate candidate = {logits[expert], expert};
    if ((any || comes_before(last, candidate)) && comes_before(candidate, best)) best = candidate;
  }
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Candidate other = {__shfl_xor_sync(kAll, best.logit, step),
                             __shfl_xor_sync(kAll, best.expert, step)};
    if (comes_before(other, best)) best = other;
  }
  return best;
}

/// A warp for a token. Lane k keeps the token's k-th choice: there are at most 32.
__global__ void choose_kernel(const float* logits, std::int32_t* ids, float* weights, int tokens,
                              int experts, int top_k) {
  const int token = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.y);
  if (token >= tokens) return;  // A whole warp.
  const int lane = static_cast<int>(threadIdx.x);
  logits += static_cast<std::int64_t>(token) * experts;

  Candidate mine = {0.0F, 0};
  Candidate last = {0.0F, 0};
  for (int k = 0; k < top_k; ++k) {
    last = next_after(logits, experts, k == 0, last);
    if (lane == k) mine = last;
  }
  // As the host does it: exponentials relative to the largest logit, added up k ascending.
  const float largest = __shfl_sync(kAll, mine.logit, 0);
  const float weight = device_exponential(mine.logit - largest);
  float sum = 0.0F;
  for (int k = 0; k < top_k; ++k) sum += __shfl_sync(kAll, weight, k);
  if (lane >= top_k) return;
  ids[static_cast<std::int64_t>(token) * top_k + lane] = mine.expert;
  weights[static_cast<std::int64_t>(token) * top_k + lane] = weight / sum;
}

}  // namespace

cudaError_t choose_experts(const float* logits, std::int32_t* ids, float* weights, int tokens,
                           int experts, int top_k, cudaStream_t stream) {
  if (tokens == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((tokens + kWarps - 1) / kWarps);
  choose_kernel<<<blocks, dim3(kWarp, kWarps), 0, stream>>>(logits, ids, weights, tokens, experts,
                                                            top_k);
  return cudaGetLastError();
}

}  // namespace moe
