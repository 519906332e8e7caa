// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include "base/deadline.hpp"
#include "bootstrap/group.hpp"
#include "engine/cuda/lane_traffic.hpp"
#include "engine/cuda/resources.hpp"
#include "relay/relay.hpp"

namespace sluice::engine::cuda {

/// Collective, once windows are mapped: the memory through which lanes reach other nodes (FarLanes), and the progress thread.
/// Completes `resources`' geometry. All ranks succeed, or all get the same Status.
Result<std::unique_ptr<relay::Relay>> open_link(const EngineConfig& config, Resources& resources,
                                                bootstrap::Group& group, base::Deadline deadline);

}  // namespace sluice::engine::cuda
