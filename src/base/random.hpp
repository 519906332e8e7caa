// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include "sluice/status.hpp"

namespace sluice::base {

/// Bits of the system's, that nobody else draws.
Status fill_random(std::span<std::byte> bytes);

}  // namespace sluice::base
