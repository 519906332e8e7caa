// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "sluice/status.hpp"
#include "sluice/types.hpp"

namespace sluice::memory {

/// Copies `bytes` from memory of `device` to the host's, as it is now: it waits for no other stream.
/// `unavailable` where this library was built without CUDA.
Status copy_from(Device device, void* to, const void* from, std::size_t bytes);

}  // namespace sluice::memory
