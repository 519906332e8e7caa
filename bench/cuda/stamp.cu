// SPDX-License-Identifier: MIT
#include "early_launch.cuh"
#include "stamp.hpp"

namespace sluice::bench {
namespace {

__global__ void stamp_kernel(std::uint64_t* to) {
  engine::cuda::let_next_start();
  engine::cuda::await_previous();
  if (threadIdx.x == 0) *to = engine::cuda::now_ns();
}

__global__ void delay_kernel(std::uint64_t ns) {
  engine::cuda::let_next_start();
  engine::cuda::await_previous();
  const std::uint64_t begin = engine::cuda::now_ns();
  while (engine::cuda::now_ns() - begin < ns) {
  }
}

}  // namespace

int launch_stamp(std::uint64_t* to, void* stream) {
  return launch_early(stamp_kernel, 1, 32, stream, to);
}

int launch_delay(std::uint64_t ns, void* stream) {
  return launch_early(delay_kernel, 1, 32, stream, ns);
}

}  // namespace sluice::bench
