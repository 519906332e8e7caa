// SPDX-License-Identifier: MIT
#include "engine/cuda/sizes.hpp"

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

}  // namespace

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
  if (!config.throughput()) return all;
  all.push_back({"desks", desk_bytes(config)});
  const std::size_t registered = mapped(config.options.registered_bytes);
  if (registered != 0) all.push_back({"registered memory", registered});
  return all;
}

}  // namespace sluice::engine::cuda
