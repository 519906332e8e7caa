// SPDX-License-Identifier: MIT
#include "conformance/scenario.hpp"

namespace sluice::conformance {

support::RunRanks launcher() {
  return support::run_as_threads;
}

}  // namespace sluice::conformance
