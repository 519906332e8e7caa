// SPDX-License-Identifier: MIT
#include "api/configuration.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace sluice::api {
namespace {

std::string message_of(const CommunicatorOptions& one, const CommunicatorOptions& other) {
  const Shape shape{.experts = 16, .top_k = 2, .hidden = 64, .max_tokens = 4};
  std::vector<std::string> descriptions;
  for (const CommunicatorOptions* options : {&one, &one, &other}) {
    const auto config = resolve(shape, *options, 0, routing::NodeMap::one_node(4));
    EXPECT_TRUE(config.ok()) << config.status().to_string();
    if (config.ok()) descriptions.push_back(describe(*config));
  }
  return compare(descriptions).message();
}

TEST(Compare, NamesWhatDiffers) {
  CommunicatorOptions one;
  EXPECT_EQ(message_of(one, one), "");
  CommunicatorOptions other;
  other.in_flight = one.in_flight + 1;
  EXPECT_EQ(message_of(one, other),
            "ranks disagree on the communicator: rank 0 has 'in_flight = " +
                std::to_string(one.in_flight) +
                "', rank 2 has 'in_flight = " + std::to_string(other.in_flight) + "'");
}

TEST(Compare, NamesTheFirstPlaceWhereListsDiffer) {
  CommunicatorOptions one;
  one.expert_to_rank = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
  CommunicatorOptions other = one;
  std::swap(other.expert_to_rank[11], other.expert_to_rank[12]);
  EXPECT_EQ(message_of(one, other),
            "ranks disagree on the communicator: rank 0 has 'expert_to_rank[11] = 2', rank 2 has "
            "'expert_to_rank[11] = 3'");
}

}  // namespace
}  // namespace sluice::api
