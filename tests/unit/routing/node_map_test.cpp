// SPDX-License-Identifier: MIT
#include "routing/node_map.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace sluice::routing {
namespace {

TEST(NodeMap, NumbersNodesByTheirLowestRank) {
  const int names[] = {7, 3, 7, 5, 3};
  const NodeMap map(names);
  EXPECT_EQ(map.nodes(), 3);
  EXPECT_EQ(map.node_of(0), 0);
  EXPECT_EQ(map.node_of(1), 1);
  EXPECT_EQ(map.node_of(3), 2);
  EXPECT_TRUE(map.together(1, 4));
  EXPECT_FALSE(map.together(0, 1));
  EXPECT_EQ(map.place_of(2), 1);
  EXPECT_EQ(std::vector<int>(map.ranks_of(1).begin(), map.ranks_of(1).end()),
            (std::vector<int>{1, 4}));
}

TEST(NodeMap, RailPeersOfUnevenNodes) {
  const int sizes[] = {3, 1};
  const NodeMap map = NodeMap::of_sizes(sizes);
  EXPECT_EQ(map.rail_peer(0, 1), 3);
  EXPECT_EQ(map.rail_peer(1, 1), 3);
  EXPECT_EQ(map.rail_peer(2, 1), 3);
  EXPECT_EQ(map.rail_peer(3, 0), 0);
  EXPECT_EQ(map.served_by(3), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(map.served_by(0), std::vector<int>{3});
  EXPECT_TRUE(map.served_by(1).empty());
}

// Whatever the sizes, every rank is served by one rank of every other node, and by none of its own.
TEST(NodeMap, EveryRankIsServedOnceOnEveryOtherNode) {
  for (const std::vector<int>& sizes :
       {std::vector<int>{1, 1}, {2, 2, 2}, {4, 1, 3}, {1, 5}, {3, 3, 2, 1}}) {
    const NodeMap map = NodeMap::of_sizes(sizes);
    for (int source = 0; source < map.ranks(); ++source) {
      std::vector<int> servers(static_cast<std::size_t>(map.nodes()));
      for (int rank = 0; rank < map.ranks(); ++rank) {
        const std::vector<int> served = map.served_by(rank);
        servers[static_cast<std::size_t>(map.node_of(rank))] +=
            static_cast<int>(std::count(served.begin(), served.end(), source));
      }
      for (int node = 0; node < map.nodes(); ++node) {
        EXPECT_EQ(servers[static_cast<std::size_t>(node)], node == map.node_of(source) ? 0 : 1);
      }
    }
  }
}

TEST(NodeMap, OfSomeRanks) {
  const int sizes[] = {2, 2, 2};
  const NodeMap map = NodeMap::of_sizes(sizes);
  const int some[] = {5, 0, 4};
  const NodeMap part = map.among(some);
  EXPECT_EQ(part.ranks(), 3);
  EXPECT_EQ(part.nodes(), 2);
  EXPECT_TRUE(part.together(0, 2));
  EXPECT_FALSE(NodeMap::one_node(4).several());
}

}  // namespace
}  // namespace sluice::routing
