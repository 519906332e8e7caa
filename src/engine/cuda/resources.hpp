// SPDX-License-Identifier: MIT
#pragma once

#include <cuda.h>

#include <memory>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "bootstrap/group.hpp"
#include "engine/cuda/throughput.hpp"
#include "engine/engine.hpp"
#include "memory/cuda/device_memory.hpp"
#include "memory/cuda/device_pool.hpp"

namespace sluice::engine::cuda {

/// What belongs to one communicator on its GPU.
struct Resources {
  int device = 0;
  std::string pci_address;      // Of the device; empty: not known.
  CUcontext context = nullptr;  // of the device
  int processors = 0;
  int sharers = 1;       // Ranks on this GPU.
  bool overlap = false;  // A launch may start before the last one ends.
  /// By rank; empty for those of other nodes. What comes from these may be carried there for a while longer.
  std::shared_ptr<std::vector<memory::DeviceMemory>> windows;
  std::vector<memory::DeviceMemory> heaps;  // By rank: registered memory, in throughput mode.
  std::shared_ptr<memory::DevicePool> pool;
  std::shared_ptr<void> state;
  std::shared_ptr<void> owners;
  std::shared_ptr<void> saved;  // SavedRoutes[in_flight]
  std::shared_ptr<void> board;  // pinned
  std::shared_ptr<void> counters;
  std::shared_ptr<void> evidence;
  std::vector<std::shared_ptr<void>> desk_memory;
  Geometry geometry;
  std::vector<Desk> desks;  // Throughput mode: by operation in flight.
};

/// Collective: takes and maps the windows of all ranks, and what else this rank needs on its GPU. All
/// ranks succeed, or all get the same Status.
Result<Resources> take_resources(const EngineConfig& config, bootstrap::Group& group,
                                 base::Deadline deadline);

}  // namespace sluice::engine::cuda
