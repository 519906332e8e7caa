// SPDX-License-Identifier: MIT
#pragma once

#include <functional>

struct dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
  constexpr dim3(unsigned x_ = 1) noexcept : x(x_) {}
};

/// A GPU that a few threads of the host play: the kernels' own code runs, thread by thread, on fibers.
namespace gpu_simulator {

/// What one thread of a grid does.
using Body = std::function<void()>;

inline constexpr int kBlocksPerProcessor = 2;

/// Runs a grid of one-dimensional blocks and returns when it has ended.
void run_grid(unsigned blocks, unsigned threads, const Body& body);

}  // namespace gpu_simulator
