// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "engine/engine.hpp"
#include "sluice/communicator.hpp"
#include "window/handle_layout.hpp"

namespace sluice::api {

/// Checks a shape and its options, and fills in what they leave open: mode, slot tokens, expert
/// map, window. The fingerprint is left 0.
Result<engine::EngineConfig> resolve(const Shape& shape, const CommunicatorOptions& options,
                                     int rank, const routing::NodeMap& nodes);

/// Everything that must be equal on all ranks, one "name = value" per line.
std::string describe(const engine::EngineConfig& config);

/// Compares the descriptions of all ranks. The same Status on every rank: it names the first rank
/// that differs from rank 0, and both values.
Status compare(const std::vector<std::string>& descriptions);

/// A number that differs for different descriptions.
std::uint64_t fingerprint_of(const std::string& description) noexcept;

window::HandleLayout handle_layout(const engine::EngineConfig& config) noexcept;

}  // namespace sluice::api
