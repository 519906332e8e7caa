// SPDX-License-Identifier: MIT
#include "engine/cuda/node_link.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "engine/cuda/sizes.hpp"
#include "engine/relay_site.hpp"
#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/device_guard.hpp"
#include "memory/cuda/pinned_memory.hpp"
#include "window/sum_lanes.hpp"

namespace sluice::engine::cuda {
namespace {

using memory::cuda_status;
using memory::DeviceGuard;

/// Of what LanePostings sends but for rows, from several places.
std::size_t message_bytes_max(const EngineConfig& config, const window::PacketLayout& layout) {
  std::size_t ranks = 0;
  for (int node = 0; node < config.nodes.nodes(); ++node) {
    ranks = std::max(ranks, config.nodes.ranks_of(node).size());
  }
  const window::PacketShape& shape = layout.shape();
  const auto tokens = static_cast<std::size_t>(shape.tokens);
  const std::size_t head = layout.cell_bytes() +
                           static_cast<std::size_t>(shape.local_experts) * sizeof(std::uint64_t) +
                           tokens * static_cast<std::size_t>(shape.top_k) * window::kPacketBytes;
  const std::size_t answers =
      layout.cell_bytes() + tokens * (window::kPacketBytes + layout.weight_bytes());
  // A quarter of the chunks: for places that end within one.
  return std::max(ranks * head + tokens * sizeof(std::uint32_t), answers) / 3 * 4;
}

/// Where rows of served ranks land, here and on the GPU, and what goes to them and comes from others.
void fill_places(const EngineConfig& config, FerryPort& port) {
  const std::vector<int> served = config.nodes.served_by(config.rank);
  const window::SumLanes sums(port.layout, config.nodes);
  port.args.partial_stride = sums.partial_stride();
  for (std::size_t i = 0; i < served.size(); ++i) {
    const auto source = static_cast<std::size_t>(served[i]);
    port.args.landed[source] = port.lanes[static_cast<std::size_t>(config.rank)].landing(served[i]);
    port.args.landings[source] = port.layout.landings(static_cast<int>(i));
    port.args.partials[source] = sums.partial(static_cast<int>(i), 0);
    port.args.lanes_out[source] = port.lanes[static_cast<std::size_t>(config.rank)].out(served[i]);
  }
  for (int source = 0; source < config.ranks; ++source) {
    if (config.nodes.together(source, config.rank)) continue;
    port.args.lanes_in[source] = port.lanes[static_cast<std::size_t>(config.rank)].in(source);
    port.args.sums[source] = sums.sum(config.nodes.node_of(source));
  }
}

/// Everything of the port that needs no peer.
Status fill_port(const EngineConfig& config, const Resources& resources, FerryPort& port) {
  const DeviceGuard guard(resources.device);
  if (!guard.status().ok()) return guard.status();
  const std::size_t bytes = host_bytes(config);
  Result<std::shared_ptr<void>> pinned = memory::take_pinned(bytes);
  if (!pinned) return pinned.status();
  port.memory = std::move(pinned).value();
  port.host = static_cast<std::byte*>(port.memory.get());
  void* seen = nullptr;
  Status status =
      cuda_status(cudaHostGetDevicePointer(&seen, port.host, 0), "mapping pinned memory");
  if (!status.ok()) return status;
  port.args.host = static_cast<std::byte*>(seen);
  // Before work that waits: a GPU that is full of it lets a stream of higher priority in first.
  int least = 0;
  int greatest = 0;
  (void)cudaDeviceGetStreamPriorityRange(&least, &greatest);
  cudaStream_t stream = nullptr;
  status = cuda_status(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
                       "a stream for what comes from other nodes");
  if (!status.ok()) return status;
  port.stream = stream;
  std::memset(port.host + port.rings, 0, kFerryHostBytes);
  port.state = resources.pool->take(sizeof(FerryState));
  if (port.state == nullptr) {
    return {StatusCode::out_of_memory, "no GPU memory for a ferry's counters"};
  }
  status = resources.pool->write(port.state.get(), nullptr, sizeof(FerryState));
  if (!status.ok()) return status;
  status = cuda_status(static_cast<cudaError_t>(load_ferry_kernel()), "loading kernels");
  if (!status.ok()) return status;

  FerryArgs& args = port.args;
  fill_places(config, port);
  for (const int rank : config.nodes.ranks_of(config.nodes.node_of(config.rank))) {
    args.windows[rank] = (*resources.windows)[static_cast<std::size_t>(rank)].base();
  }
  args.hidden = config.shape.hidden;
  args.rank = config.rank;
  args.layout = port.layout;
  args.state = static_cast<FerryState*>(port.state.get());
  auto* const rings = static_cast<std::byte*>(seen) + port.rings;
  args.items = reinterpret_cast<const FerryItem*>(rings);
  args.counts = rings + kFerryItemsBytes;
  return {};
}

/// What kernels in throughput mode know of other nodes.
void fill_desk(const EngineConfig& config, const FerryPort& port, std::chrono::nanoseconds patience,
               Desk& desk) {
  const routing::NodeMap& nodes = config.nodes;
  for (int source = 0; source < config.ranks; ++source) {
    if (nodes.together(source, config.rank)) continue;
    const int server = nodes.rail_peer(source, nodes.node_of(config.rank));
    const std::vector<int> served = nodes.served_by(server);
    const auto place = std::find(served.begin(), served.end(), source) - served.begin();
    desk.stages[source] = port.args.windows[server] + port.layout.landings(static_cast<int>(place));
  }
  const window::HostLanes& own = port.lanes[static_cast<std::size_t>(config.rank)];
  std::byte* const host = port.args.host;
  desk.host_stages = host + own.stage();
  desk.host_targets = reinterpret_cast<std::uint32_t*>(host + own.targets(0));
  // It is settled after two patiences at most (docs/relay.md, "Leases").
  desk.settle_ns = static_cast<std::uint64_t>(4 * patience.count());
}

/// What kernels know of other nodes.
void fill_geometry(const EngineConfig& config, const FerryPort& port,
                   std::chrono::nanoseconds patience, Resources& resources) {
  Geometry& g = resources.geometry;
  const routing::NodeMap& nodes = config.nodes;
  std::byte* const host = port.args.host;
  const window::HostLanes& own = port.lanes[static_cast<std::size_t>(config.rank)];
  for (int peer = 0; peer < config.ranks; ++peer) {
    const int rail = nodes.rail_peer(config.rank, nodes.node_of(peer));
    if (nodes.together(peer, config.rank)) {
      g.near |= 1U << peer;
      // And those who reach this rank through it.
      if (peer == config.rank) continue;
      for (const int source : nodes.served_by(peer)) g.board->falls_with[peer] |= 1U << source;
      continue;
    }
    g.rail[peer] = static_cast<std::uint8_t>(rail);
    g.lanes[peer] = host + own.out(peer);
    std::uint32_t falls = 1U << peer;
    for (const int rank : nodes.ranks_of(nodes.node_of(peer))) {
      if (peer == rail) falls |= 1U << rank;
    }
    g.board->falls_with[peer] = falls;
  }
  g.published = host;
  for (Desk& desk : resources.desks) fill_desk(config, port, patience, desk);
}

/// Whoever waits for a GPU, as cudaEventSynchronize() does unasked, spins.
void warn_of_one_processor(int rank) {
  cpu_set_t own;
  CPU_ZERO(&own);
  if (sched_getaffinity(0, sizeof(own), &own) != 0 || CPU_COUNT(&own) > 1) return;
  base::log_warn(
      "rank {}: bound to one processor, which its progress thread shares with the caller: expected "
      "two or more, else operations across nodes may take milliseconds",
      rank);
}

}  // namespace

Result<std::unique_ptr<relay::Relay>> open_link(const EngineConfig& config, Resources& resources,
                                                std::shared_ptr<bootstrap::Group> group,
                                                base::Deadline deadline) {
  warn_of_one_processor(config.rank);
  const window::PacketLayout layout(config.packets);
  const window::WindowLayout words(relay_words(config));
  Result<relay::Opening> opening =
      relay::open(*group, words, std::max(layout.staged_row_stride(), layout.combine_row_stride()),
                  message_bytes_max(config, layout), deadline);
  if (!opening) return opening.status();

  auto port = std::make_shared<FerryPort>();
  port->device = resources.device;
  port->layout = layout;
  port->windows = resources.windows;
  port->pool = resources.pool;
  port->board = resources.board;
  for (int rank = 0; rank < config.ranks; ++rank) {
    port->lanes.push_back(host_lanes(config, rank));
  }
  const auto own = static_cast<std::size_t>(config.rank);
  port->rings = port->lanes[own].end();
  Status status = fill_port(config, resources, *port);
  if (status = group->agree(status, deadline); !status.ok()) return status;
  fill_geometry(config, *port, opening->patience, resources);
  // The next launch would take the room that ferries need.
  resources.overlap = false;

  Result<memory::SharedRegion> region =
      group->share(opening->layouts[own].bytes(), /*committed=*/true, deadline);
  if (!region) return region.status();
  // Other nodes reach the lanes, too; neighbours do not.
  std::vector<memory::SharedRegion::Part> lanes(static_cast<std::size_t>(config.ranks));
  lanes[own] = {port->host, port->rings};
  auto memory = std::make_shared<relay::Memory>(
      relay::Memory{std::move(region).value(), memory::SharedRegion(std::move(lanes), [port] {})});

  return relay::Relay::start(
      std::move(opening).value(), relay_site(config, words, std::move(memory), std::move(group)),
      [port](const relay::Site& at, relay::Postings& postings) -> std::unique_ptr<relay::Traffic> {
        return std::make_unique<LaneTraffic>(at, postings, port);
      },
      deadline);
}

}  // namespace sluice::engine::cuda
