// SPDX-License-Identifier: MIT
#include "conformance/scenario.hpp"

namespace sluice::conformance {

// Threads: the sanitizer sees races within one process only.
support::RunRanks launcher() {
  return support::run_as_threads;
}

}  // namespace sluice::conformance
