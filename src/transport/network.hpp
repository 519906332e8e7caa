// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/environment.hpp"
#include "transport/bundling.hpp"
#include "transport/libfabric.hpp"
#include "transport/memory_fabric.hpp"
#include "transport/transport.hpp"

namespace sluice::transport {

/// How relays use a network (docs/relay.md). Equal on all ranks.
struct RelaySettings {
  /// A rank of another node of which nothing was heard for so long is given up. Every rank sends a
  /// sign of life ten times as often, or every 100 ms (with more than 50 nodes: every 2 ms for each).
  std::chrono::nanoseconds patience = std::chrono::milliseconds(900);
  /// What lies together is put in chunks of at most so many bytes. As long as this they cost next to nothing each
  /// (docs/performance/transport.md).
  std::uint64_t chunk_bytes = std::uint64_t{512} << 10;
  /// Rows are sent in messages for so many neighbouring ones: they are passed on when all of a message has come.
  int message_rows = 64;

  /// Where rows of the CUDA engine lie, on their way: in GPU memory if the network reaches it (best), in pinned host memory, or
  /// nowhere but in GPU memory.
  enum class GpuRows : std::uint8_t { best, staged, direct };
  GpuRows gpu_rows = GpuRows::best;

  static constexpr std::uint64_t kChunkBytesMin = 4096;
  static constexpr std::uint64_t kChunkBytesMax = std::uint64_t{1} << 30;
  static constexpr int kMessageRowsMax = 256;
  static constexpr std::int64_t kPatienceMsMax = 86'400'000;  // A day.
};

/// What an endpoint is opened for.
struct Purpose {
  /// Memory of GPUs should be reached, if it can be (Traits::device_memory).
  bool device_memory = false;
  /// Processors that this rank's threads have, as far as is known.
  int processors = 1;
  /// Which network cards it takes: the PCI address of its GPU (empty: none, or not known), and those of its node's ranks before it.
  std::string near = {};
  std::vector<std::string> near_before = {};
  /// Ranks with the same one reach each other at loopback addresses. Empty: not known.
  std::string loopback_network = {};
};

/// Where the ranks of a world get their endpoints.
class Network {
 public:
  virtual ~Network() = default;

  /// The endpoint of `rank` of `ranks`. Those with the same `meeting` belong together.
  virtual Result<std::unique_ptr<Endpoint>> open(int rank, int ranks, std::uint64_t meeting,
                                                 const Purpose& purpose) = 0;
  /// The same network, on which every chunk travels by itself: for measurements.
  virtual Network& plain() noexcept { return *this; }

  RelaySettings relay;
};

/// Each meeting gets a fabric, seeded anew from `adversity.seed`.
std::shared_ptr<Network> memory_network(const Adversity& adversity);
std::shared_ptr<Network> libfabric_network(const LibfabricSettings& settings);
/// Whose short chunks travel together.
std::shared_ptr<Network> bundling_network(std::shared_ptr<Network> below,
                                          const BundlingSettings& settings);

/// Null, but in tests: what worlds get in the place of their network.
using NetworkHook = std::shared_ptr<Network> (*)(std::shared_ptr<Network> network);
inline std::atomic<NetworkHook> network_hook{nullptr};

/// As SLUICE_NETWORK and its like say.
Result<std::shared_ptr<Network>> network_of(const base::Environment& environment);

}  // namespace sluice::transport
