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

/// To what offsets of rows in a lane are added, where the first one lies at `offset` of the memory of rows.
std::byte* row_lane(const FerryPort& port, std::size_t offset) {
  return port.args.rows + (static_cast<std::ptrdiff_t>(offset) -
                           static_cast<std::ptrdiff_t>(port.layout.rows_begin()));
}

/// Where rows of served ranks land, here and on the GPU, and what goes to them and comes from others.
void fill_places(const EngineConfig& config, FerryPort& port) {
  const std::vector<int> served = config.nodes.served_by(config.rank);
  const window::FarLanes& own = port.lanes[static_cast<std::size_t>(config.rank)];
  const std::size_t first = port.layout.rows_begin();
  const window::SumLanes sums(port.layout, config.nodes);
  FerryArgs& args = port.args;
  args.partial_stride = sums.partial_stride();
  for (std::size_t i = 0; i < served.size(); ++i) {
    const int source = served[i];
    args.landed[source] = args.rows + own.landing(source);
    args.landings[source] = port.layout.landings(static_cast<int>(i));
    args.partials[source] = sums.partial(static_cast<int>(i), 0);
    args.lanes_out[source] = args.host + own.out(source);
    args.row_lanes_out[source] = row_lane(port, own.out_row(source, first));
  }
  for (int source = 0; source < config.ranks; ++source) {
    if (config.nodes.together(source, config.rank)) continue;
    args.lanes_in[source] = args.host + own.in(source);
    args.row_lanes_in[source] = row_lane(port, own.in_row(source, first));
    args.sums[source] = sums.sum(config.nodes.node_of(source));
  }
}

/// Host memory, as the host and the GPU see it.
Status take_host(const EngineConfig& config, FerryPort& port) {
  Result<std::shared_ptr<void>> pinned = memory::take_pinned(host_bytes(config));
  if (!pinned) return pinned.status();
  port.memory = std::move(pinned).value();
  port.host = static_cast<std::byte*>(port.memory.get());
  void* seen = nullptr;
  Status status =
      cuda_status(cudaHostGetDevicePointer(&seen, port.host, 0), "mapping pinned memory");
  if (!status.ok()) return status;
  port.args.host = static_cast<std::byte*>(seen);
  std::memset(port.host + port.rings, 0, kFerryHostBytes);
  return {};
}

/// The memory of rows, behind the other regions.
Status take_rows(const EngineConfig& config, const relay::Memory& memory, relay::Opening& opening,
                 FerryPort& port) {
  Status status = opening.add_memory(config.rank, memory);
  if (!status.ok()) return status;
  Result<FarRows> rows = FarRows::take(*opening.endpoint, opening.gpu_rows, config.rank,
                                       port.device, far_rows_bytes(config));
  if (!rows.ok()) return rows.status();
  port.rows = std::move(rows).value();
  port.args.rows = port.rows.base();
  return {};
}

/// What the ferry needs besides memory of what travels.
Status fill_port(const EngineConfig& config, const Resources& resources, FerryPort& port) {
  // Before work that waits: a GPU that is full of it lets a stream of higher priority in first.
  int least = 0;
  int greatest = 0;
  (void)cudaDeviceGetStreamPriorityRange(&least, &greatest);
  cudaStream_t stream = nullptr;
  Status status =
      cuda_status(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
                  "a stream for what comes from other nodes");
  if (!status.ok()) return status;
  port.stream = stream;
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
  port.worked = resources.state;
  args.worked = &static_cast<State*>(resources.state.get())->worked;
  auto* const rings = args.host + port.rings;
  args.items = reinterpret_cast<const FerryItem*>(rings);
  args.counts = rings + kFerryItemsBytes;
  port.args_of_operations = resources.pool->take(sizeof(FerryArgs));
  if (port.args_of_operations == nullptr) {
    return {StatusCode::out_of_memory, "no GPU memory for what carries"};
  }
  return resources.pool->write(port.args_of_operations.get(), &args, sizeof(FerryArgs));
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
  const window::FarLanes& own = port.lanes[static_cast<std::size_t>(config.rank)];
  std::byte* const host = port.args.host;
  desk.far_stages = port.args.rows + own.stage();
  desk.host_targets = reinterpret_cast<std::uint32_t*>(host + own.targets(0));
  // It is settled after two patiences at most (docs/relay.md, "Leases").
  desk.settle_ns = static_cast<std::uint64_t>(4 * patience.count());
}

/// What kernels know of other nodes.
Status fill_geometry(const EngineConfig& config, const FerryPort& port,
                     std::chrono::nanoseconds patience, Resources& resources) {
  Geometry& g = resources.geometry;
  const routing::NodeMap& nodes = config.nodes;
  std::byte* const host = port.args.host;
  const window::FarLanes& own = port.lanes[static_cast<std::size_t>(config.rank)];
  std::byte* row_lanes[kPeersMax] = {};
  for (int peer = 0; peer < config.ranks; ++peer) {
    const int rail = nodes.rail_peer(config.rank, nodes.node_of(peer));
    if (nodes.together(peer, config.rank)) {
      g.near |= 1U << peer;
      row_lanes[peer] = g.lanes[peer];
      // And those who reach this rank through it.
      if (peer == config.rank) continue;
      for (const int source : nodes.served_by(peer)) g.board->falls_with[peer] |= 1U << source;
      continue;
    }
    g.rail[peer] = static_cast<std::uint8_t>(rail);
    g.lanes[peer] = host + own.out(peer);
    row_lanes[peer] = row_lane(port, own.out_row(peer, port.layout.rows_begin()));
    std::uint32_t falls = 1U << peer;
    for (const int rank : nodes.ranks_of(nodes.node_of(peer))) {
      if (peer == rail) falls |= 1U << rank;
    }
    g.board->falls_with[peer] = falls;
  }
  g.published = host;
  for (Desk& desk : resources.desks) fill_desk(config, port, patience, desk);
  State& state = *static_cast<State*>(resources.state.get());
  const Status status = resources.pool->write(&state.row_lanes, row_lanes, sizeof(row_lanes));
  if (!status.ok()) return status;
  const void* const ferry = port.args_of_operations.get();
  return resources.pool->write(&state.ferry, &ferry, sizeof(ferry));
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
                                                bootstrap::Group& group, base::Deadline deadline) {
  warn_of_one_processor(config.rank);
  const window::PacketLayout layout(config.packets);
  const window::WindowLayout words(relay_words(config));
  // Before the endpoint, which uses them, and is destroyed first.
  auto port = std::make_shared<FerryPort>();
  std::shared_ptr<relay::Memory> memory;
  Result<relay::Opening> opening =
      relay::open(group, words, std::max(layout.staged_row_stride(), layout.combine_row_stride()),
                  message_bytes_max(config, layout), resources.pci_address, deadline);
  if (!opening) return opening.status();

  port->device = resources.device;
  port->layout = layout;
  port->windows = resources.windows;
  port->pool = resources.pool;
  port->board = resources.board;
  for (int rank = 0; rank < config.ranks; ++rank) {
    port->lanes.push_back(far_lanes(config, rank));
  }
  const auto own = static_cast<std::size_t>(config.rank);
  port->rings = port->lanes[own].end();
  const DeviceGuard guard(resources.device);
  Status status = guard.status();
  if (status.ok()) status = take_host(config, *port);
  if (status = group.agree(status, deadline); !status.ok()) return status;
  // A caller who leaves room for other kernels may have others that wait for ferries, too: of another communicator. Then launches
  // take no more than one at a time.
  if (config.options.block_limit > 0) resources.overlap = false;

  Result<memory::SharedRegion> region =
      group.share(opening->layouts[own].bytes(), /*committed=*/true, deadline);
  if (!region) return region.status();
  // Other nodes reach the lanes, too; neighbours do not.
  std::vector<memory::SharedRegion::Part> lanes(static_cast<std::size_t>(config.ranks));
  lanes[own] = {port->host, port->rings};
  memory = std::make_shared<relay::Memory>(
      relay::Memory{std::move(region).value(), memory::SharedRegion(std::move(lanes), [port] {})});
  status = take_rows(config, *memory, *opening, *port);
  if (status.ok()) status = fill_port(config, resources, *port);
  if (status.ok()) status = fill_geometry(config, *port, opening->patience, resources);
  if (status = group.agree(status, deadline); !status.ok()) return status;

  return relay::Relay::start(
      group, std::move(opening).value(),
      relay_site(config, words, std::move(memory), group.peers()),
      [port](const relay::Site& at, relay::Postings& postings) -> std::unique_ptr<relay::Traffic> {
        return std::make_unique<LaneTraffic>(at, postings, port);
      },
      deadline);
}

}  // namespace sluice::engine::cuda
