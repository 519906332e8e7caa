// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string_view>

#include "transport/network.hpp"

namespace sluice::support {

/// `network`, whose endpoints have ranks find out wrongly when a message is complete:
/// - running_count: chunks are counted by source, and taken for those of its message that began first;
/// - last_chunk: by the chunk that was put last, whatever has come of the others.
/// For tests that what this does is noticed. Up to 32 ranks, with 16,384 slots each.
Result<std::shared_ptr<transport::Network>> with_scheme(std::shared_ptr<transport::Network> network,
                                                        std::string_view name);

}  // namespace sluice::support
