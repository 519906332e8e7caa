// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>

namespace sluice::conformance {

/// Ranks on several nodes: threads that share no memory across nodes.
struct Nodes {
  const char* name;
  int ranks;
  int node_size;  ///< The last node may be smaller.
};

inline void PrintTo(const Nodes& nodes, std::ostream* out) {
  *out << nodes.name;
}

/// Communicators from now on are on such nodes, over the network that SLUICE_TEST_NETWORK names, or one in memory with this seed.
void place(const Nodes& nodes, std::uint64_t seed);

class OnNodes : public ::testing::TestWithParam<Nodes> {
 public:
  static std::string name(const ::testing::TestParamInfo<Nodes>& info) { return info.param.name; }
};

}  // namespace sluice::conformance
