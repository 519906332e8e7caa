// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include "engine/cuda/throughput.hpp"
#include "engine/engine.hpp"
#include "window/far_lanes.hpp"

/// How much the CUDA engine takes of a GPU's memory. Built also where the engine is not: a machine without a GPU can tell
/// what one with GPUs will need.
namespace sluice::engine::cuda {

/// Whether the engine takes such a communicator.
Status check_config(const EngineConfig& config);
/// What create_engine takes of one GPU's memory, and, with several nodes, of the host's.
Result<std::vector<SizeEntry>> sizes(const EngineConfig& config);

/// Where what goes to and comes from other nodes lies in the host memory of `rank`, behind Geometry::published.
window::FarLanes far_lanes(const EngineConfig& config, int rank);
/// Of that memory, which is pinned, with the rings of the ferry; and of that of rows.
std::size_t host_bytes(const EngineConfig& config);
std::size_t far_rows_bytes(const EngineConfig& config);
/// What relays of different nodes say to each other needs words and slots; rows lie in FarLanes.
window::WindowShape relay_words(const EngineConfig& config);

/// What peers of this node write, and for sums of nodes.
std::size_t window_bytes(const EngineConfig& config);
/// Of all banks and sources.
std::size_t evidence_bytes(const EngineConfig& config);

/// Calls visit(pointer, count) for every array of the desks of all operations in flight.
template <typename Visit>
void each_array(const EngineConfig& config, Desk& desk, Visit visit) {
  const auto wide = [](int value) { return static_cast<std::size_t>(value); };
  const std::size_t depth = wide(config.options.in_flight);
  const std::size_t routes = depth * wide(config.tokens_max) * wide(config.shape.top_k);
  visit(desk.counts, wide(kBlocksMax) * wide(config.shape.experts + config.ranks));
  visit(desk.ids, routes);
  visit(desk.weights, routes);
  visit(desk.record_numbers, depth * wide(config.tokens_max) * wide(config.ranks));
  visit(desk.bad_routes, depth);
  visit(desk.arrivals, std::size_t{1});
  visit(desk.first_rows, wide(config.ranks) * wide(config.local_experts()));
  visit(desk.done, wide(protocol::kKinds * Desk::kHalves));
  visit(desk.dispatch_notes, wide(Desk::kHalves));
  visit(desk.combine_notes, wide(Desk::kHalves));
}

}  // namespace sluice::engine::cuda
