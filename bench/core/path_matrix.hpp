// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gpus.hpp"
#include "routing/node_map.hpp"
#include "sluice/world.hpp"

namespace sluice::bench {

/// Where a rank runs, as it sees that itself.
struct Seat {
  std::string host;
  std::string gpu;  ///< Its PCI address; empty: none, or none is known.
  /// Those of other GPUs whose memory this one can map, and how they are connected (Gpu::Reachable).
  std::map<std::string, std::string> reachable;

  /// Of `rank` in this process. It uses GPU r modulo those that are seen.
  static Seat here(int rank, const Gpus& gpus);
};

/// How what one rank sends reaches another.
struct Path {
  enum class Kind : std::uint8_t {
    self,
    shared_memory,  ///< One node; of GPUs nothing is known, or they do not reach each other.
    same_gpu,
    peer_access,  ///< One node; the GPU of one maps the memory of the other's.
    network,
  };
  Kind kind = Kind::self;
  int rail_peer = -1;  ///< network: the rank of the other node that takes it.
  std::string way;     ///< peer_access: how the GPUs are connected; empty: not known.
};

/// The paths between all ranks of a world.
class PathMatrix {
 public:
  PathMatrix(routing::NodeMap nodes, std::vector<Seat> seats);
  /// Collective: of the ranks of that world.
  static Result<PathMatrix> of_world(World& world, const Gpus& gpus);
  /// Of ranks that would all be started here, on nodes of these sizes.
  static PathMatrix of_sizes(const std::vector<int>& node_sizes, const Gpus& gpus);

  Path path(int from, int to) const;
  void print(std::FILE* out) const;
  nlohmann::ordered_json json() const;

 private:
  const Seat& seat(int rank) const noexcept { return seats_[static_cast<std::size_t>(rank)]; }
  Path on_node(int from, int to) const;
  std::string word(int from, int to) const;

  routing::NodeMap nodes_;
  std::vector<Seat> seats_;
};

}  // namespace sluice::bench
