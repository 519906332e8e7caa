// SPDX-License-Identifier: MIT
#include "conformance/scenario.hpp"

namespace sluice::conformance {

// Threads: the sanitizer sees races within one process only.
support::RunRanks launcher() {
  return support::run_as_threads;
}
Reduce default_on_nodes() {
  return Reduce::node;
}

}  // namespace sluice::conformance
