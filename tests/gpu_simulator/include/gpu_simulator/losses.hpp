// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>

/// What a test can have the simulated GPU lose, or come too late to see.
namespace gpu_simulator {

/// Packets of this word alone: those in every second 512 bytes of memory are never stored. 0: all are.
inline std::atomic<std::uint32_t> lost_word{0};
/// The same of packets whose second word this is.
inline std::atomic<std::uint32_t> lost_second_word{0};
/// Counts of rows of just this number: those of every second expert are never stored. 0: all are.
inline std::atomic<std::uint32_t> lost_count{0};

/// Called by threads of kernels before they look whether `peer` is gone, after their last poll.
inline std::atomic<void (*)(int peer)> about_to_look{nullptr};

}  // namespace gpu_simulator
