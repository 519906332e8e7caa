// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "bf16.hpp"

/// The model's arithmetic on a GPU: what model.hpp of example 01 has for the host, with the same
/// bits. All pointers are memory of the GPU; every function queues work on `stream` and returns at
/// once.
namespace moe {

/// Rows in groups, one per expert, each with weights of its own. How many rows a group has is read
/// on the GPU when the kernel runs: with Sluice the host does not know, and need not.
struct Groups {
  const std::int32_t* counts = nullptr;   ///< [groups]; null: rows_max each.
  const std::int64_t* offsets = nullptr;  ///< [groups]: first row; null: 0, of one group.
  int groups = 1;
  int rows_max = 0;  ///< Of one group.
};

// matmul.cu

/// c [rows, columns] = a [rows, depth] * b [groups][depth, columns], group by group.
///
/// Every element of c is one chain of additions over depth, ascending, from +0, as matmul.hpp of
/// example 01 promises for the host.
cudaError_t matmul(const Groups& groups, const Bf16* a, const Bf16* b, float* c, int depth,
                   int columns, cudaStream_t stream);
/// The same, rounded to bf16. c may be the memory that a's own input was in, but not a.
cudaError_t matmul(const Groups& groups, const Bf16* a, const Bf16* b, Bf16* c, int depth,
                   int columns, cudaStream_t stream);

// elements.cu

/// inner [rows, width] = silu(gate) * up, with wide [rows, 2 * width] = gate beside up.
cudaError_t activate(const Groups& groups, const float* wide, Bf16* inner, int width,
                     cudaStream_t stream);
/// h = x / sqrt(mean(x^2) + epsilon), row by row.
cudaError_t rms_norm(const Bf16* x, Bf16* h, int tokens, int hidden, cudaStream_t stream);
/// out = x + update.
cudaError_t add(const Bf16* x, const Bf16* update, Bf16* out, std::size_t count,
                cudaStream_t stream);

// choose_experts.cu

/// Softmax over logits [tokens, experts], the top_k largest (on a tie the lower expert),
/// normalised.
cudaError_t choose_experts(const float* logits, std::int32_t* ids, float* weights, int tokens,
                           int experts, int top_k, cudaStream_t stream);

// records.cu

/// The rows of a rank_major dispatch: one per token that came, whichever of this rank's experts it
/// is for.
struct Records {
  const std::int64_t* count = nullptr;      ///< One number.
  const std::int32_t* local_ids = nullptr;  ///< [count, top_k], -1: not an expert of this rank.
  const float* local_weights = nullptr;     ///< [count, top_k]
  int most = 0;                             ///< Of count.
  int top_k = 0;
  int hidden = 0;
};
/// Copies every record to a row of each of its experts: `sorted`, in the groups that `groups`
/// tells. slots [most, top_k] gets the rows' numbers, -1 where there is none. taken [groups]:
/// scratch.
cudaError_t sort_by_expert(const Records& records, const Groups& groups, const Bf16* rows,
                           Bf16* sorted, std::int32_t* slots, std::int32_t* taken,
                           cudaStream_t stream);
/// y [count, hidden]: every record's weighted sum of its experts' results, k ascending.
cudaError_t sum_by_record(const Records& records, const Bf16* results, const std::int32_t* slots,
                          Bf16* y, cudaStream_t stream);

}  // namespace moe
