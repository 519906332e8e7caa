// SPDX-License-Identifier: MIT
//
// Which of the deliberate bugs of src/engine/cuda/kernel_mutants.cuh the kernels of the simulated GPU
// have: found before it.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace sluice::engine::cuda {

#define SLUICE_KERNEL_MUTANTS(EACH) \
  EACH(packet_not_emptied)          \
  EACH(stale_header_taken)          \
  EACH(any_cell_taken)              \
  EACH(poison_sent)                 \
  EACH(epoch_of_own_block)          \
  EACH(own_rank_counted)            \
  EACH(capacity_off_by_one)         \
  EACH(scales_not_stored)           \
  EACH(padding_kept)                \
  EACH(signature_ignored)           \
  EACH(product_rounded)             \
  EACH(ranks_descending)            \
  EACH(duplicate_dropped)           \
  EACH(loss_not_scaled)             \
  EACH(loss_not_counted)            \
  EACH(given_weights_ignored)

#define SLUICE_ENUMERATOR(name) name,
enum class KernelMutant { none, SLUICE_KERNEL_MUTANTS(SLUICE_ENUMERATOR) };
#undef SLUICE_ENUMERATOR

inline KernelMutant chosen_mutant() {
  const char* const chosen = std::getenv("SLUICE_KERNEL_MUTANT");
  if (chosen == nullptr) return KernelMutant::none;
#define SLUICE_CHOOSE(name) \
  if (std::string_view(chosen) == #name) return KernelMutant::name;
  SLUICE_KERNEL_MUTANTS(SLUICE_CHOOSE)
#undef SLUICE_CHOOSE
  std::fprintf(stderr, "SLUICE_KERNEL_MUTANT: there is no '%s'\n", chosen);
  std::abort();
}
inline bool mutant(KernelMutant mutant) {
  static const KernelMutant chosen = chosen_mutant();
  return mutant == chosen;
}

}  // namespace sluice::engine::cuda
