// SPDX-License-Identifier: MIT
#include "routing/node_map.hpp"

#include <map>

namespace sluice::routing {

NodeMap::NodeMap(std::span<const int> rank_to_node) {
  std::map<int, int> numbers;
  for (std::size_t rank = 0; rank < rank_to_node.size(); ++rank) {
    const auto [known, is_new] =
        numbers.try_emplace(rank_to_node[rank], static_cast<int>(members_.size()));
    if (is_new) members_.emplace_back();
    std::vector<int>& members = members_[static_cast<std::size_t>(known->second)];
    node_of_.push_back(known->second);
    place_.push_back(static_cast<int>(members.size()));
    members.push_back(static_cast<int>(rank));
  }
}

NodeMap NodeMap::of_sizes(std::span<const int> sizes) {
  std::vector<int> rank_to_node;
  for (std::size_t node = 0; node < sizes.size(); ++node) {
    rank_to_node.insert(rank_to_node.end(), static_cast<std::size_t>(sizes[node]),
                        static_cast<int>(node));
  }
  return NodeMap(rank_to_node);
}

NodeMap NodeMap::among(std::span<const int> ranks) const {
  std::vector<int> rank_to_node;
  for (const int rank : ranks) rank_to_node.push_back(node_of(rank));
  return NodeMap(rank_to_node);
}

std::vector<int> NodeMap::served_by(int rank) const {
  std::vector<int> served;
  for (int source = 0; source < ranks(); ++source) {
    if (!together(source, rank) && rail_peer(source, node_of(rank)) == rank) {
      served.push_back(source);
    }
  }
  return served;
}

}  // namespace sluice::routing
