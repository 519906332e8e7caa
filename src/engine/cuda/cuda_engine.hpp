// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include "base/deadline.hpp"
#include "bootstrap/group.hpp"
#include "engine/engine.hpp"

namespace sluice::engine::cuda {

/// Collective over the group. `unavailable` on every rank where a rank's library was built without CUDA,
/// or it has no GPU, or GPUs cannot reach each other's memory.
Result<std::unique_ptr<Engine>> create_engine(EngineConfig config,
                                              std::shared_ptr<bootstrap::Group> group,
                                              base::Deadline deadline);

}  // namespace sluice::engine::cuda
