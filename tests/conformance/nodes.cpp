// SPDX-License-Identifier: MIT
#include "conformance/nodes.hpp"

#include <cstdlib>

namespace sluice::conformance {

void place(const Nodes& nodes, std::uint64_t seed) {
  ::setenv("SLUICE_TEST_NODE_SIZE", std::to_string(nodes.node_size).c_str(), 1);
  // Sanitizers and busy machines are slow, and nobody is silent here.
  ::setenv("SLUICE_NETWORK_PATIENCE_MS", "60000", 1);
  if (std::getenv("SLUICE_TEST_NETWORK") != nullptr) {
    ::setenv("SLUICE_NETWORK", std::getenv("SLUICE_TEST_NETWORK"), 1);
  } else {
    ::setenv("SLUICE_NETWORK", ("memory:" + std::to_string(seed)).c_str(), 1);
  }
}

}  // namespace sluice::conformance
