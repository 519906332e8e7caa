// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::bench {

/// What must be known of a machine and a build to read a figure.
struct Machine {
  std::string cpu;
  int cpus = 0;  ///< That this process may use.
  std::int64_t memory_bytes = 0;
  std::string kernel;
  std::string compiler;
  std::string build;    ///< Build type and compiler flags.
  std::string version;  ///< Of Sluice.
  std::string row_kernels;
  std::string gpu;    ///< Of rank 0, with its driver; empty without --engine cuda.
  double load = 0.0;  ///< One-minute load average before the run.

  static Machine here();
  /// Things that make figures worthless or noisy.
  std::vector<std::string> warnings(int ranks) const;
};

/// Binds this thread, and those that it will start, to the (rank mod n)-th of the n processors that the process may use, so
/// that ranks beyond them share them evenly. `several`: a rank has several threads, and gets its part of all processors, if that
/// is more than one. Best effort.
void bind_to_processors(int rank, int ranks, bool several);

/// Names of sanitizers compiled in, or "none".
std::string sanitizers();
/// Instruction sets of this processor that matter to the row functions.
std::vector<std::string> instruction_sets();

}  // namespace sluice::bench
