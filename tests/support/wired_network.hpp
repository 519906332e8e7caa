// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "support/wire.hpp"
#include "transport/network.hpp"

namespace sluice::support {

/// The weather of one rail after the other; rails beyond take turns.
using Weathers = std::vector<Weather>;

/// delay: 0.3 ms; loss: the same, and 1 % of the pieces are sent again after 5 to 40 ms; narrow: 40 MB/s;
/// overtaking: 0.3 ms, and 4 ms with losses on every second rail; dying: 0.3 ms, and every second rail carries
/// nothing from second_rail_is_dead() on. No such name: none.
Weathers weathers_named(std::string_view name);

/// Of all wires in this process. The tests' to set.
std::atomic<bool>& second_rail_is_dead() noexcept;

/// An introduction of an endpoint of libfabric on 127.0.0.1, by which peers connect through the wire.
Result<std::string> through(Wire& wire, std::string_view introduction, const Weathers& weathers);

/// Endpoints of `network`, an introduction of each of which leads through one wire.
Result<std::shared_ptr<transport::Network>> wired(std::shared_ptr<transport::Network> network,
                                                  const Weathers& weathers);

}  // namespace sluice::support
