// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include "base/deadline.hpp"
#include "bootstrap/group.hpp"
#include "engine/engine.hpp"

namespace sluice::engine::cuda {

/// `unavailable` where this library was built without CUDA. For who asks before ranks agree to make an engine: builds differ.
Status check_built();

/// Collective over the group, of ranks that have this engine. `unavailable` on every rank where a rank has no GPU, or GPUs cannot reach each other's memory.
Result<std::unique_ptr<Engine>> create_engine(EngineConfig config,
                                              std::shared_ptr<bootstrap::Group> group,
                                              base::Deadline deadline);

}  // namespace sluice::engine::cuda
