// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "bootstrap/group.hpp"
#include "transport/transport.hpp"

namespace sluice::bench {

/// An endpoint as a communicator has one, with nothing above it, connected to all ranks of other nodes; and its
/// only region, which `memory` makes and owns. Collective; the group has several nodes.
Result<std::unique_ptr<transport::Endpoint>> bare_endpoint(
    bootstrap::Group& group, double deadline_s,
    const std::function<Result<std::span<std::byte>>(const transport::Traits&)>& memory);

}  // namespace sluice::bench
