// SPDX-License-Identifier: MIT
#include <array>
#include <atomic>
#include <thread>

#include "mutants/scenarios.hpp"

namespace sluice::mutants {
namespace {

constexpr std::size_t kPoints = static_cast<std::size_t>(base::TestPoint::progress) + 1;
constexpr std::size_t kRanks = 4;

std::array<std::array<std::array<std::atomic<int>, kRanks + 1>, kRanks>, kPoints> counts;
Script script_now;

std::atomic<int>& counter(base::TestPoint point, int rank, int peer) {
  return counts[static_cast<std::size_t>(point)][static_cast<std::size_t>(rank)]
               [static_cast<std::size_t>(peer + 1)];
}

void hook(base::TestPoint point, int rank, int peer) {
  counter(point, rank, peer).fetch_add(1, std::memory_order_relaxed);
  script_now(point, rank, peer);
}

}  // namespace

ScriptRun::ScriptRun(Script script) {
  for (auto& ranks : counts) {
    for (auto& peers : ranks) {
      for (auto& one : peers) one.store(0, std::memory_order_relaxed);
    }
  }
  script_now = std::move(script);
  base::test_point_hook.store(&hook);
}

ScriptRun::~ScriptRun() {
  base::test_point_hook.store(nullptr);
}

int count(base::TestPoint point, int rank, int peer) {
  return counter(point, rank, peer).load(std::memory_order_relaxed);
}

void wait_for(const std::function<bool()>& done, std::chrono::milliseconds at_most) {
  const auto end = std::chrono::steady_clock::now() + at_most;
  while (!done() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace sluice::mutants
