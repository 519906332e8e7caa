// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpu_simulator {

/// GPUs of the simulated machine.
inline constexpr int kDevices = 4;
inline constexpr std::size_t kDynamicBytes = std::size_t{227} << 10;

/// Multiprocessors of each: SLUICE_SIMULATOR_PROCESSORS, or 4. In latency mode a kernel has one block on each, two, or one
/// on each of half of them: with 16 there is one for every role.
int processors() noexcept;
int current_device() noexcept;
/// GPUs whose contexts the calling thread has pushed, or chosen by cudaSetDevice, the current one last.
std::vector<int>& contexts_of_thread();
/// Whether this process has used the GPU.
bool has_context(int device) noexcept;
void make_context(int device) noexcept;
std::uint64_t host_nanoseconds() noexcept;

}  // namespace gpu_simulator
