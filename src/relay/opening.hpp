// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "bootstrap/group.hpp"
#include "relay/site.hpp"
#include "transport/network.hpp"
#include "transport/transport.hpp"
#include "window/relay_layout.hpp"

namespace sluice::relay {

/// A rank's end of the network, before it is connected.
struct Opening {
  /// Registers kWindowRegion and kHeapRegion: before start(), and before further regions. Not collective: the caller tells the
  /// other ranks if it fails.
  Status add_memory(int rank, const Memory& memory);

  std::unique_ptr<transport::Endpoint> endpoint;
  std::vector<window::RelayLayout> layouts;  // [R]
  std::chrono::nanoseconds patience{};
  std::uint64_t chunk_bytes = 0;
  int processors = 1;
  transport::RelaySettings::GpuRows gpu_rows = transport::RelaySettings::GpuRows::best;
};
/// Of what lies together, put at once at most.
std::uint64_t chunk_bytes(const transport::RelaySettings& settings,
                          const transport::Traits& traits) noexcept;
/// Collective. What an endpoint is opened for whose rows are in memory of a GPU at this address of PCI, or of none (empty).
Result<transport::Purpose> purpose_of(bootstrap::Group& group, const std::string& gpu,
                                      base::Deadline deadline);
/// The area of a rank with the settings that a network has unless it is told otherwise. `row_bytes`: as in open().
Result<window::RelayLayout> usual_layout(const window::WindowLayout& window,
                                         const routing::NodeMap& nodes, int rank,
                                         std::size_t row_bytes);
/// Collective. The group has several nodes. `row_bytes`: from one row to the next, of the longest. `message_bytes`: of the
/// longest message of an engine that does not send those of RelayLayout. `gpu`: its rows are in memory of a GPU,
/// at this address of PCI (empty: not known).
Result<Opening> open(bootstrap::Group& group, const window::WindowLayout& window,
                     std::size_t row_bytes, std::size_t message_bytes,
                     const std::optional<std::string>& gpu, base::Deadline deadline);

}  // namespace sluice::relay
