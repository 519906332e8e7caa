// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "support/gpu_place.hpp"

namespace sluice::support {

/// main() of an executable whose tests all need a GPU. Where `gpus` counts none it says so and exits with
/// kNoGpu, which ctest takes for a skipped test.
inline int run_gpu_tests(int argc, char** argv, int (*gpus)()) {
  ::testing::InitGoogleTest(&argc, argv);
  // Ranks that share a GPU wait for each other: their streams must not share a hardware queue. CUDA reads this when it
  // is first used.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  if (!::testing::GTEST_FLAG(list_tests) && gpus() == 0) {
    std::puts("skipped: no GPU in this machine");
    return kNoGpu;
  }
  return RUN_ALL_TESTS();
}

}  // namespace sluice::support
