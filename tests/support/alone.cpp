// SPDX-License-Identifier: MIT
#include "support/alone.hpp"

#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>

#include "support/sanitizers.hpp"

namespace sluice::support {
namespace {

std::ptrdiff_t threads() {
  using Tasks = std::filesystem::directory_iterator;
  return std::distance(Tasks("/proc/self/task"), Tasks());
}

}  // namespace

void wait_until_alone() {
  if (!testing::kAddressSanitizer) return;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (threads() > 1 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace sluice::support
