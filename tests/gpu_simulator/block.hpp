// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "gpu_simulator/kernel_launch.hpp"

namespace gpu_simulator {

/// What runs blocks, one after the other, on the thread of the host that calls run_block(). Never destroyed.
class Block;
Block& new_block(unsigned threads_max);
/// The block-th of `blocks`, by a schedule that follows from the seed; 0: every thread in its turn, without delays.
void run_block(Block& on, unsigned block, unsigned blocks, unsigned threads, const Body& body,
               std::uint64_t seed);

}  // namespace gpu_simulator
