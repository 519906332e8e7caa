// SPDX-License-Identifier: MIT
#include "engine/cuda/resources.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "bootstrap/host_identity.hpp"
#include "engine/cuda/sizes.hpp"
#include "memory/cuda/cuda_status.hpp"
#include "memory/cuda/device_guard.hpp"
#include "memory/cuda/pinned_memory.hpp"
#include "window/sum_lanes.hpp"

namespace sluice::engine::cuda {
namespace {

using memory::cuda_status;
using memory::DeviceGuard;
using memory::DeviceMemory;

Status choose_device(const EngineConfig& config, Resources& resources) {
  int count = 0;
  if (Status status = cuda_status(cudaGetDeviceCount(&count), "looking for a GPU"); !status.ok()) {
    return status;
  }
  resources.device = config.options.device_index;
  if (resources.device < 0) {
    if (Status status = cuda_status(cudaGetDevice(&resources.device), "current GPU");
        !status.ok()) {
      return status;
    }
  }
  if (resources.device >= count) {
    return {StatusCode::invalid_argument,
            fmt::format("device_index = {}, expected 0 to {}", resources.device, count - 1)};
  }
  return cuda_status(cudaDeviceGetAttribute(&resources.processors, cudaDevAttrMultiProcessorCount,
                                            resources.device),
                     "multiprocessors");
}

/// Zeros where `from` is null.
template <typename T>
Status copy_to_device(memory::DevicePool& pool, const T* from, std::size_t count,
                      std::shared_ptr<void>& to) {
  const std::size_t bytes = count * sizeof(T);
  to = pool.take(bytes);
  if (to == nullptr) {
    return {StatusCode::out_of_memory, fmt::format("no {} bytes of GPU memory", bytes)};
  }
  return pool.write(to.get(), from, bytes);
}

/// Owners of experts where ranks do not own equal contiguous blocks.
Status set_owners(const EngineConfig& config, Resources& resources) {
  Geometry& g = resources.geometry;
  const int experts = config.shape.experts;
  const int per_rank = experts / config.ranks;
  bool contiguous = experts % config.ranks == 0;
  std::vector<std::uint16_t> owners;
  for (int expert = 0; expert < experts; ++expert) {
    const int rank = config.map.rank_of(expert);
    contiguous = contiguous && rank == expert / per_rank;
    owners.push_back(static_cast<std::uint16_t>(rank << kLocalBits | config.map.local_of(expert)));
  }
  if (contiguous) {
    g.experts_divisor = Divisor(per_rank);
    return {};
  }
  const Status status =
      copy_to_device(*resources.pool, owners.data(), owners.size(), resources.owners);
  g.owners = static_cast<const std::uint16_t*>(resources.owners.get());
  return status;
}

/// Who answers whom with `reduce = node`, if it makes a difference. After the windows are mapped.
Status set_nodes(const EngineConfig& config, Resources& resources) {
  const Geometry& g = resources.geometry;
  const routing::NodeMap& nodes = config.nodes;
  if (!window::SumLanes::needed(nodes)) return {};
  const window::SumLanes sums(g.layout, nodes);
  NodeTable table;
  table.nodes = nodes.nodes();
  for (int node = 0; node < nodes.nodes(); ++node) {
    const bool own = node == nodes.node_of(config.rank);
    const int giver = own ? config.rank : nodes.rail_peer(config.rank, node);
    table.giver[node] = static_cast<std::uint8_t>(giver);
    for (const int rank : nodes.ranks_of(node)) {
      table.giver_of[rank] = static_cast<std::uint8_t>(own ? rank : giver);
      table.from[rank] = g.window + (own ? g.layout.lane(rank) : sums.sum(node));
      if (own) {
        table.near |= 1U << rank;
        table.to[rank] = g.lanes[rank];
        continue;
      }
      const int server = nodes.rail_peer(rank, nodes.node_of(config.rank));
      const std::vector<int> served = nodes.served_by(server);
      const auto place = std::find(served.begin(), served.end(), rank) - served.begin();
      table.to[rank] = (*resources.windows)[static_cast<std::size_t>(server)].base() +
                       sums.partial(static_cast<int>(place), nodes.place_of(config.rank));
    }
  }
  const DeviceGuard guard(resources.device);
  return resources.pool->write(&static_cast<State*>(resources.state.get())->nodes, &table,
                               sizeof(table));
}

Status take_desks(const EngineConfig& config, Resources& resources) {
  Desk desk;
  Status status;
  each_array(config, desk, [&]<typename T>(T*& array, std::size_t count) {
    std::shared_ptr<void> memory;
    if (status.ok()) status = copy_to_device<T>(*resources.pool, nullptr, count, memory);
    array = static_cast<T*>(memory.get());
    resources.desk_memory.push_back(std::move(memory));
  });
  const std::ptrdiff_t routes = std::ptrdiff_t{config.tokens_max} * config.shape.top_k;
  for (int i = 0; i < config.options.in_flight && status.ok(); ++i) {
    resources.desks.push_back(desk);
    desk.ids += routes;
    desk.weights += routes;
    desk.record_numbers += std::ptrdiff_t{config.tokens_max} * config.ranks;
    ++desk.bad_routes;
  }
  return status;
}

/// Everything that needs no peer: this rank's window, zeroed signals, state.
Status prepare(const EngineConfig& config, Resources& resources, DeviceMemory& window) {
  if (Status status = check_config(config); !status.ok()) return status;
  if (Status status = choose_device(config, resources); !status.ok()) return status;
  const DeviceGuard guard(resources.device);
  if (!guard.status().ok()) return guard.status();
  const window::PacketLayout layout(config.packets);
  Result<std::shared_ptr<memory::DevicePool>> pool = memory::DevicePool::create(resources.device);
  if (!pool) return pool.status();
  resources.pool = std::move(pool).value();
  Result<DeviceMemory> made = DeviceMemory::create(resources.device, window_bytes(config), 0xFF);
  if (!made) return made.status();
  window = std::move(made).value();
  for (int peer = 0; peer < config.ranks; ++peer) {
    if (Status status =
            resources.pool->write(window.base() + layout.lane(peer), nullptr, layout.told_bytes());
        !status.ok()) {
      return status;
    }
  }
  if (Status status = copy_to_device<State>(*resources.pool, nullptr, 1, resources.state);
      !status.ok()) {
    return status;
  }
  static_assert(sizeof(Board) <= memory::kPinnedBytes);
  Result<std::shared_ptr<void>> board = memory::take_pinned();
  if (!board) return board.status();
  resources.board = std::move(board).value();
  if (Status status = set_owners(config, resources); !status.ok()) return status;
  if (Status status = copy_to_device<SavedRoutes>(
          *resources.pool, nullptr, static_cast<std::size_t>(config.options.in_flight),
          resources.saved);
      !status.ok()) {
    return status;
  }
  const int counters = Counters::words(config.local_experts());
  if (Status status = copy_to_device<unsigned long long>(
          *resources.pool, nullptr, static_cast<std::size_t>(counters), resources.counters);
      !status.ok()) {
    return status;
  }
  if (Status status = copy_to_device<std::byte>(*resources.pool, nullptr, evidence_bytes(config),
                                                resources.evidence);
      !status.ok()) {
    return status;
  }
  if (config.throughput()) {
    if (Status status = take_desks(config, resources); !status.ok()) return status;
  }
  // Loading a kernel later could wait for one that spins.
  for (int (*const load)() :
       {load_dispatch_kernels, load_combine_kernels, load_throughput_dispatch_kernels,
        load_throughput_combine_kernels, load_row_counts_kernel}) {
    if (Status status = cuda_status(static_cast<cudaError_t>(load()), "loading kernels");
        !status.ok()) {
      return status;
    }
  }
  resources.overlap = kernels_await_previous();
  for (Desk& desk : resources.desks) desk.ring_bytes = throughput_ring_bytes();
  return {};
}

/// Collective: maps what every rank has created. All ranks succeed, or all get the same Status. places: of the ranks' GPUs, for
/// messages.
Status map_all(const char* what, int rank, int device, Result<DeviceMemory> own,
               bootstrap::Group& group, const std::vector<std::string>& places,
               base::Deadline deadline, std::vector<DeviceMemory>& all) {
  Result<std::vector<std::string>> sizes =
      group.all_gather(std::to_string(own ? own->bytes() : 0), deadline);
  if (!sizes) return sizes.status();
  Result<base::Descriptor> file =
      own ? own->share() : Result<base::Descriptor>(Status(own.status()));
  Result<std::vector<base::Descriptor>> files = group.exchange_files(file, deadline);
  if (!files) return files.status();
  Status mapped;
  for (int peer = 0; peer < group.size() && mapped.ok(); ++peer) {
    if (peer == rank) {
      all.push_back(std::move(own).value());
      continue;
    }
    if (!group.nodes().together(peer, rank)) {
      all.emplace_back();
      continue;
    }
    Result<DeviceMemory> memory =
        DeviceMemory::import(device, (*files)[static_cast<std::size_t>(peer)],
                             std::stoull((*sizes)[static_cast<std::size_t>(peer)]));
    if (!memory) {
      mapped = {memory.status().code(),
                fmt::format("{} of rank {} (GPU {}): {}", what, peer,
                            places[static_cast<std::size_t>(peer)], memory.status().message())};
    } else {
      all.push_back(std::move(memory).value());
    }
  }
  // All ranks go on, or none does.
  Result<std::vector<base::Descriptor>> agreed = group.exchange_files(
      mapped.ok() ? Result<base::Descriptor>(base::Descriptor()) : Result<base::Descriptor>(mapped),
      deadline);
  return agreed ? Status() : agreed.status();
}

}  // namespace

Result<Resources> take_resources(const EngineConfig& config, bootstrap::Group& group,
                                 base::Deadline deadline) {
  Resources resources;
  DeviceMemory window;
  Status status = prepare(config, resources, window);

  // Which GPU every rank is on: also of other nodes, which may be on this machine.
  resources.pci_address = memory::pci_address(resources.device);
  Result<std::string> gpu = memory::device_uuid(resources.device);
  if (status.ok()) status = gpu.status();
  Result<std::vector<std::string>> gpus = group.all_gather(gpu.ok() ? *gpu : "", deadline);
  if (!gpus) return gpus.status();
  resources.sharers =
      static_cast<int>(std::ranges::count(*gpus, (*gpus)[static_cast<std::size_t>(config.rank)]));
  // The next launch of one rank must not take the room of another rank's, for which it waits.
  resources.overlap = resources.overlap && resources.sharers == 1;
  Result<std::vector<std::string>> places = group.all_gather(
      fmt::format("{} of {}", resources.pci_address, bootstrap::host_name()), deadline);
  if (!places) return places.status();

  resources.windows = std::make_shared<std::vector<DeviceMemory>>();
  status = map_all("window", config.rank, resources.device,
                   status.ok() ? Result<DeviceMemory>(std::move(window))
                               : Result<DeviceMemory>(std::move(status)),
                   group, *places, deadline, *resources.windows);
  if (!status.ok()) return status;
  if (config.throughput()) {
    const DeviceGuard guard(resources.device);
    status = map_all("registered memory", config.rank, resources.device,
                     DeviceMemory::create(resources.device, config.options.registered_bytes, 0),
                     group, *places, deadline, resources.heaps);
    if (!status.ok()) return status;
  }

  Geometry& g = resources.geometry;
  g.rank = config.rank;
  g.ranks = config.ranks;
  g.top_k = config.shape.top_k;
  g.hidden = config.shape.hidden;
  g.experts = config.shape.experts;
  g.local_experts = config.local_experts();
  g.top_k_divisor = Divisor(config.shape.top_k);
  g.ranks_divisor = Divisor(config.ranks);
  g.handle_key = mix(static_cast<std::uint32_t>(config.fingerprint ^ config.fingerprint >> 32),
                     static_cast<std::uint32_t>(config.rank)) |
                 1U;
  const window::PacketLayout layout(config.packets);
  g.layout = layout;
  for (int rank = 0; rank < config.ranks; ++rank) {
    g.lanes[rank] =
        (*resources.windows)[static_cast<std::size_t>(rank)].base() + layout.lane(config.rank);
  }
  {
    const DeviceGuard guard(resources.device);
    status = guard.status();
    if (status.ok()) resources.context = memory::current_context();
  }
  g.window = (*resources.windows)[static_cast<std::size_t>(config.rank)].base();
  for (Desk& desk : resources.desks) {
    for (int rank = 0; rank < config.ranks; ++rank) {
      desk.stages[rank] =
          (*resources.windows)[static_cast<std::size_t>(rank)].base() + layout.staged_row(0, 0);
      desk.heaps[rank] = resources.heaps[static_cast<std::size_t>(rank)].base();
    }
  }
  if (status.ok()) status = set_nodes(config, resources);
  if (status = group.agree(status, deadline); !status.ok()) return status;
  g.state = static_cast<State*>(resources.state.get());
  g.board = static_cast<Board*>(resources.board.get());
  for (int peer = 0; peer < config.ranks; ++peer) g.board->falls_with[peer] = 1U << peer;
  g.counters = static_cast<unsigned long long*>(resources.counters.get());
  g.evidence = static_cast<std::byte*>(resources.evidence.get());
  return resources;
}

}  // namespace sluice::engine::cuda
