// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <vector>

#include "base/deadline.hpp"
#include "bootstrap/group.hpp"
#include "engine/cuda/kernels.hpp"
#include "engine/engine.hpp"
#include "memory/cuda/device_memory.hpp"

namespace sluice::engine::cuda {

/// Memory that goes back to CUDA by itself.
using DevicePointer = std::unique_ptr<void, void (*)(void*)>;

void free_device(void* at);
void free_host(void* at);

/// What belongs to one communicator on its GPU.
struct Resources {
  int device = 0;
  int processors = 0;
  int sharers = 1;                            // Ranks on this GPU.
  std::vector<memory::DeviceMemory> windows;  // By rank.
  DevicePointer state{nullptr, free_device};
  DevicePointer owners{nullptr, free_device};
  DevicePointer saved{nullptr, free_device};  // SavedRoutes[in_flight]
  DevicePointer board{nullptr, free_host};
  Geometry geometry;
};

/// Collective: takes and maps the windows of all ranks, and what else this rank needs on its GPU. All
/// ranks succeed, or all get the same Status.
Result<Resources> take_resources(const EngineConfig& config, bootstrap::Group& group,
                                 base::Deadline deadline);

}  // namespace sluice::engine::cuda
