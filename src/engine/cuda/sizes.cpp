// SPDX-License-Identifier: MIT
#include "engine/cuda/sizes.hpp"

#include <algorithm>

#include "engine/cuda/ferry.hpp"
#include "relay/relay.hpp"
#include "window/host_lanes.hpp"
#include "window/sum_lanes.hpp"

namespace sluice::engine::cuda {
namespace {

/// In which a GPU's memory is mapped (what DeviceMemory::granularity says of all GPUs seen so far).
constexpr std::size_t kMappedBytes = std::size_t{2} << 20;

std::size_t mapped(std::size_t bytes) {
  return (bytes + kMappedBytes - 1) / kMappedBytes * kMappedBytes;
}

std::size_t desk_bytes(const EngineConfig& config) {
  Desk desk;
  std::size_t bytes = 0;
  each_array(config, desk,
             [&](auto* array, std::size_t count) { bytes += count * sizeof(*array); });
  return bytes;
}

/// What other nodes take of the host.
void add_host_memory(const EngineConfig& config, std::vector<SizeEntry>& all) {
  const window::PacketLayout layout(config.packets);
  const window::HostLanes lanes(layout, config.nodes, config.rank, window::kPageBytes);
  all.push_back({"pinned host memory, other nodes", lanes.end() + kFerryHostBytes});
  const std::size_t row = std::max(layout.staged_row_stride(), layout.combine_row_stride());
  const window::RelayLayout words(window::WindowLayout(relay_words(config)), config.nodes,
                                  config.rank, relay::usual_group_rows(row));
  all.push_back({"host memory, other nodes", words.bytes()});
}

}  // namespace

window::WindowShape relay_words(const EngineConfig& config) {
  window::WindowShape shape;
  shape.ranks = config.ranks;
  shape.top_k = config.shape.top_k;
  shape.banks = config.packets.banks;
  shape.dispatch_stages = config.packets.banks;
  shape.tokens = config.tokens_max;
  shape.combine_rows_per_token = config.packets.combine_rows_per_token;
  return shape;
}

std::size_t window_bytes(const EngineConfig& config) {
  const window::PacketLayout layout(config.packets);
  return window::SumLanes(layout, config.nodes).window_bytes();
}

std::size_t evidence_bytes(const EngineConfig& config) {
  return Evidence::bytes(config.local_experts(), config.tokens_max) *
         static_cast<std::size_t>(config.packets.banks * config.ranks);
}

std::vector<SizeEntry> sizes(const EngineConfig& config) {
  std::vector<SizeEntry> all = {
      {"window", mapped(window_bytes(config))},
      {"state", sizeof(State)},
      {"saved routes", sizeof(SavedRoutes) * static_cast<std::size_t>(config.options.in_flight)},
      {"counters", sizeof(unsigned long long) *
                       static_cast<std::size_t>(Counters::words(config.local_experts()))},
      {"evidence", evidence_bytes(config)}};
  if (config.throughput()) {
    all.push_back({"desks", desk_bytes(config)});
    const std::size_t registered = mapped(config.options.registered_bytes);
    if (registered != 0) all.push_back({"registered memory", registered});
  }
  if (config.nodes.several()) add_host_memory(config, all);
  return all;
}

}  // namespace sluice::engine::cuda
