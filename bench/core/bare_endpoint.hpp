// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "bootstrap/group.hpp"
#include "transport/transport.hpp"

namespace sluice::bench {

/// An endpoint as a communicator has one, with nothing above it, connected to all ranks of other nodes; and its
/// only region, which `memory` makes and owns. `gpu`: its rank's, of which the communicator's network cards are near: the address
/// of PCI; empty: none. Collective; the group has several nodes.
Result<std::unique_ptr<transport::Endpoint>> bare_endpoint(
    bootstrap::Group& group, const std::string& gpu, double deadline_s,
    const std::function<Result<std::span<std::byte>>(const transport::Traits&)>& memory);

}  // namespace sluice::bench
