// SPDX-License-Identifier: MIT
#include "relay/opening.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/environment.hpp"
#include "base/log.hpp"
#include "bootstrap/host_identity.hpp"
#include "bootstrap/processors.hpp"
#include "transport/message.hpp"

namespace sluice::relay {
namespace {

using bootstrap::Group;
using GpuRows = transport::RelaySettings::GpuRows;

// As many rows as fit a message whatever lies between them.
int group_rows_of(std::uint64_t row, std::uint64_t chunk, int rows_max) {
  const std::uint64_t chunks = (row + chunk - 1) / chunk;
  return static_cast<int>(std::clamp<std::uint64_t>(transport::Signal::kChunksMax / chunks, 1,
                                                    static_cast<std::uint64_t>(rows_max)));
}

// longest: of what else is sent.
Status check_layout(const window::RelayLayout& layout, std::uint64_t longest, std::uint64_t chunk) {
  if (!layout.valid()) {
    return {StatusCode::invalid_argument,
            fmt::format("{} slots for messages of other nodes, expected at most {}: fewer tokens "
                        "per call, fewer operations in flight, or more rows a message ({})",
                        layout.slots(), transport::Signal::kOwnSlots,
                        base::name_of(base::Variable::network_message_rows))};
  }
  constexpr std::uint64_t kChunksMax = transport::Signal::kChunksMax;
  // A message may be put from two places.
  longest = std::max<std::uint64_t>(2 * layout.message_bytes_max(), longest);
  if (longest > kChunksMax * chunk) {
    return {StatusCode::invalid_argument,
            fmt::format("{}: chunks of {} bytes, expected at least {}, or fewer tokens per call: "
                        "a message has {} chunks at most",
                        base::name_of(base::Variable::network_chunk), chunk,
                        (longest + kChunksMax - 1) / kChunksMax, kChunksMax)};
  }
  return {};
}

}  // namespace

std::uint64_t chunk_bytes(const transport::RelaySettings& settings,
                          const transport::Traits& traits) noexcept {
  return std::min<std::uint64_t>(settings.chunk_bytes, traits.put_bytes_max);
}

Result<window::RelayLayout> usual_layout(const window::WindowLayout& window,
                                         const routing::NodeMap& nodes, int rank,
                                         std::size_t row_bytes) {
  const transport::RelaySettings settings;
  window::RelayLayout layout(window, nodes, rank,
                             group_rows_of(row_bytes, settings.chunk_bytes, settings.message_rows));
  const Status status = check_layout(layout, row_bytes, settings.chunk_bytes);
  if (!status.ok()) return status;
  return layout;
}

Result<transport::Purpose> purpose_of(Group& group, const std::string& gpu,
                                      base::Deadline deadline) {
  const Result<int> processors = bootstrap::processors_of_rank(group, deadline);
  if (!processors.ok()) return processors.status();
  const auto gpus = group.all_gather(gpu, deadline);
  if (!gpus.ok()) return gpus.status();
  transport::Purpose purpose;
  purpose.processors = *processors;
  purpose.near = gpu;
  if (const auto host = bootstrap::this_host(); host.ok()) {
    purpose.loopback_network = bootstrap::network_of_node(host->node);
  }
  for (const int rank : group.nodes().ranks_of(group.nodes().node_of(group.rank()))) {
    if (rank == group.rank()) break;
    purpose.near_before.push_back((*gpus)[static_cast<std::size_t>(rank)]);
  }
  return purpose;
}

Result<Opening> open(Group& group, const window::WindowLayout& window, std::size_t row_bytes,
                     std::size_t message_bytes, const std::optional<std::string>& gpu,
                     base::Deadline deadline) {
  Opening opening;
  auto meeting = group.number(deadline);
  if (!meeting.ok()) return meeting.status();
  Result<transport::Purpose> purpose = purpose_of(group, gpu.value_or(""), deadline);
  if (!purpose.ok()) return purpose.status();
  purpose->device_memory = gpu && group.network()->relay.gpu_rows != GpuRows::staged;
  opening.processors = purpose->processors;
  auto endpoint = group.network()->open(group.rank(), group.size(), *meeting, *purpose);
  Status status = endpoint.status();
  if (status.ok()) {
    opening.endpoint = std::move(endpoint).value();
    const transport::RelaySettings& settings = group.network()->relay;
    const transport::Traits& traits = opening.endpoint->traits();
    opening.patience = settings.patience;
    opening.gpu_rows = settings.gpu_rows;
    opening.chunk_bytes = chunk_bytes(settings, traits);
    base::log_info("rank {}: between nodes: {}, {}, {} rails, chunks of {} bytes", group.rank(),
                   traits.provider, to_string(traits.signals), traits.rails, opening.chunk_bytes);
    for (int rank = 0; rank < group.size(); ++rank) {
      opening.layouts.emplace_back(
          window, group.nodes(), rank,
          group_rows_of(row_bytes, opening.chunk_bytes, settings.message_rows));
    }
    status = check_layout(opening.layouts[static_cast<std::size_t>(group.rank())],
                          std::max(row_bytes, message_bytes), opening.chunk_bytes);
  }
  if (status = group.agree(status, deadline); !status.ok()) return status;
  // What ranks put, others look for where their own layout says; and who has been given up stops taking what comes before
  // its memory is used again (docs/relay.md, "Leases"): both by one patience.
  const std::string mine =
      fmt::format("puts {} rows a message and {} bytes a chunk, with a patience of {} ms",
                  opening.layouts.front().group_rows(), opening.chunk_bytes,
                  std::chrono::duration_cast<std::chrono::milliseconds>(opening.patience).count());
  auto theirs = group.all_gather(mine, deadline);
  if (!theirs.ok()) return theirs.status();
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::string& seen = (*theirs)[static_cast<std::size_t>(rank)];
    if (seen == theirs->front()) continue;
    return Status(
        StatusCode::mismatch,
        fmt::format(
            "between nodes: rank 0 {}, rank {} {}: their networks differ, or SLUICE_NETWORK_CHUNK, "
            "SLUICE_NETWORK_MESSAGE_ROWS or SLUICE_NETWORK_PATIENCE_MS does",
            theirs->front(), rank, seen));
  }
  return opening;
}

Status Opening::add_memory(int rank, const Memory& memory) {
  Status status =
      endpoint->add_region(memory.windows.base(rank), memory.windows.bytes(rank)).status();
  if (status.ok() && memory.heaps.bytes(rank) > 0) {
    status = endpoint->add_region(memory.heaps.base(rank), memory.heaps.bytes(rank)).status();
  }
  return status;
}

}  // namespace sluice::relay
