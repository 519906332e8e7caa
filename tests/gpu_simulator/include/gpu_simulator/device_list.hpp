// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpu_simulator {

/// GPUs of the simulated machine, and multiprocessors of each.
inline constexpr int kDevices = 4;
inline constexpr int kProcessors = 4;
inline constexpr std::size_t kDynamicBytes = std::size_t{64} << 10;

int current_device() noexcept;
std::uint64_t host_nanoseconds() noexcept;

}  // namespace gpu_simulator
