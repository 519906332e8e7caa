// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace moe {

/// Calls work(i) for every i in [0, count), on `threads` threads. The calls are independent.
template <typename Work>
void parallel_for(int threads, int count, const Work& work) {
  // Threads take the next number when they are done with one; who takes which changes nothing.
  std::atomic<int> next{0};
  const auto run = [&next, count, &work] {
    for (int i = next.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      work(i);
    }
  };
  std::vector<std::thread> helpers;
  for (int t = 1; t < std::min(threads, count); ++t) helpers.emplace_back(run);
  run();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace moe
