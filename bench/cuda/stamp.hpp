// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace sluice::bench {

/// Queues a kernel that writes the GPU's clock, in nanoseconds, to `*to` once everything before it on the
/// stream (a cudaStream_t) has ended. Returns CUDA's error code.
int launch_stamp(std::uint64_t* to, void* stream);

}  // namespace sluice::bench
