// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace sluice::bench {

/// Queues a kernel that writes the GPU's clock, in nanoseconds, to `*to` once everything before it on the
/// stream (a cudaStream_t) has ended. Returns CUDA's error code.
int launch_stamp(std::uint64_t* to, void* stream);

/// Queues a kernel that does nothing for `ns` nanoseconds. Returns CUDA's error code.
int launch_delay(std::uint64_t ns, void* stream);

}  // namespace sluice::bench
