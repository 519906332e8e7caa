// SPDX-License-Identifier: MIT
#pragma once

/// Deliberate bugs in kernels, for the test that each of them is found (tests/mutants). Here nothing of
/// them remains; tests/gpu_simulator has a file of the same name that asks SLUICE_KERNEL_MUTANT.
namespace sluice::engine::cuda {

enum class KernelMutant {
  packet_not_emptied,    // What was read stays in its slot.
  stale_header_taken,    // A header of any operation is taken for the awaited one.
  any_cell_taken,        // A cell of any operation is taken for the awaited one.
  poison_sent,           // Payload that looks like an empty packet is sent as it is.
  epoch_of_own_block,    // A block notes its progress for itself only.
  own_rank_counted,      // Rows begin after those of their own source.
  capacity_off_by_one,   // One row more than the capacity is stored.
  scales_not_stored,     // Rows are received without their scales.
  padding_kept,          // Rows that hold nothing are not zeroed.
  signature_ignored,     // Cells of another call are taken.
  product_rounded,       // A product is rounded before it is added.
  ranks_descending,      // Sums are added in descending order of ranks.
  duplicate_dropped,     // A duplicate's weight is not added to that of its lowest k.
  loss_not_scaled,       // The sum is not renormalised when routes are lost.
  loss_not_counted,      // Lost routes do not appear in the report.
  given_weights_ignored  // combine uses the weights of dispatch, whatever it was given.
};

__device__ __forceinline__ constexpr bool mutant(KernelMutant /*mutant*/) {
  return false;
}

}  // namespace sluice::engine::cuda
