// SPDX-License-Identifier: MIT
//
// Which of the deliberate bugs the kernels of the simulated GPU have: found before the file of the same
// name in src.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "engine/cuda/kernel_mutants.hpp"

namespace sluice::engine::cuda {

inline KernelMutant chosen_mutant() {
  const char* const chosen = std::getenv("SLUICE_KERNEL_MUTANT");
  if (chosen == nullptr) return KernelMutant::none;
#define SLUICE_CHOOSE(name) \
  if (std::string_view(chosen) == #name) return KernelMutant::name;
  SLUICE_KERNEL_MUTANTS(SLUICE_CHOOSE)
#undef SLUICE_CHOOSE
  std::fprintf(stderr, "SLUICE_KERNEL_MUTANT: there is no '%s'\n", chosen);
  ::_exit(2);  // Not what a mutant that was killed ends with.
}
inline bool mutant(KernelMutant mutant) {
  static const KernelMutant chosen = chosen_mutant();
  return mutant == chosen;
}

}  // namespace sluice::engine::cuda
