// SPDX-License-Identifier: MIT
#include "conformance/scenario.hpp"

namespace sluice::conformance {

support::RunRanks launcher() {
  return support::run_as_processes;
}
Reduce default_on_nodes() {
  return Reduce::node;
}

}  // namespace sluice::conformance
