// SPDX-License-Identifier: MIT
#include "engine/cuda/sizes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "engine/cuda/ferry.hpp"
#include "memory/cuda/pinned_memory.hpp"
#include "relay/relay.hpp"
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

Status check_config(const EngineConfig& config) {
  const auto unimplemented = [](std::string message) {
    return Status(StatusCode::unimplemented, std::move(message));
  };
  if (config.ranks > kPeersMax) {
    return unimplemented(
        fmt::format("device = cuda with {} ranks, expected at most {}", config.ranks, kPeersMax));
  }
  if (!config.throughput() && config.tokens_max > kTokensMax) {
    return unimplemented(fmt::format("device = cuda with slot_tokens = {}, expected at most {}",
                                     config.tokens_max, kTokensMax));
  }
  if (!window::PacketLayout(config.packets).valid()) {
    return unimplemented(
        "device = cuda: one rank's part of a window exceeds 4 GiB; expected fewer tokens "
        "(slot_tokens, or max_tokens in mode throughput), or a smaller hidden or in_flight");
  }
  // As items of the ferry count them.
  if (config.nodes.several()) {
    const std::size_t bytes = std::max(host_bytes(config), far_rows_bytes(config));
    if (bytes / window::kPacketBytes > UINT32_MAX) {
      return unimplemented(
          fmt::format("device = cuda on several nodes: {} bytes for what goes to and comes from "
                      "other nodes, expected less than 64 GiB: fewer tokens per call (max_tokens), "
                      "or a smaller hidden or in_flight",
                      bytes));
    }
  }
  return {};
}

window::FarLanes far_lanes(const EngineConfig& config, int rank) {
  return {window::PacketLayout(config.packets), config.nodes, rank, PublishedWords::kBytes};
}
std::size_t host_bytes(const EngineConfig& config) {
  return far_lanes(config, config.rank).end() + kFerryHostBytes;
}

std::size_t far_rows_bytes(const EngineConfig& config) {
  return far_lanes(config, config.rank).rows_end();
}

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

Result<std::vector<SizeEntry>> sizes(const EngineConfig& config) {
  if (Status status = check_config(config); !status.ok()) return status;
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
  if (!config.nodes.several()) return all;
  all.push_back({"pinned host memory, other nodes", memory::pinned_bytes(host_bytes(config))});
  // Of the host, or, where the network reaches it, of the GPU.
  all.push_back({"rows, other nodes", memory::pinned_bytes(far_rows_bytes(config))});
  const window::PacketLayout layout(config.packets);
  const Result<window::RelayLayout> words =
      relay::usual_layout(window::WindowLayout(relay_words(config)), config.nodes, config.rank,
                          std::max(layout.staged_row_stride(), layout.combine_row_stride()));
  if (!words) return words.status();
  all.push_back({"host memory, other nodes", words->bytes()});
  return all;
}

}  // namespace sluice::engine::cuda
