// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include "base/deadline.hpp"
#include "bootstrap/group.hpp"
#include "engine/engine.hpp"

namespace sluice::engine::cpu {

/// Collective over the group: shares the windows and the registered memory. Fails on all ranks with
/// one Status, or on none.
Result<std::unique_ptr<Engine>> create_engine(EngineConfig config,
                                              std::shared_ptr<bootstrap::Group> group,
                                              base::Deadline deadline);

}  // namespace sluice::engine::cpu
