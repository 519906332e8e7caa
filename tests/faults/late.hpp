// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>

#include "support/gpu_place.hpp"
#include "support/run_ranks.hpp"

/// Trials in which one of four ranks, in threads on GPUs, comes at its peers' deadline.
namespace sluice::faults {

using std::chrono::milliseconds;

constexpr int kRanks = 4;
constexpr int kTopk = kRanks;  // A route to every rank.
constexpr int kExperts = 16;
#if SLUICE_CUDA_SIMULATED
constexpr std::chrono::milliseconds kDeadline{1000};
constexpr int kTrials = 4;  // Its deadlines are long, and few of its trials in the middle.
#else
constexpr std::chrono::milliseconds kDeadline{50};
constexpr int kTrials = 40;
#endif

/// Routes of `tokens` tokens, each to every rank, all with a weight of 1.
inline void route_everywhere(int tokens, std::int32_t* ids, float* weights) {
  constexpr int kLocal = kExperts / kRanks;
  for (int at = 0; at < tokens * kTopk; ++at) {
    const int k = at % kTopk;
    ids[at] = k * kLocal + (at / kTopk + k) % kLocal;
    weights[at] = 1.0F;
  }
}

/// bf16 of a small number.
inline std::uint16_t half_of(int value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return static_cast<std::uint16_t>(bits >> 16);
}

/// Whether a row of so many bf16 says two things: `first` in all of its first half, `second` in its second.
inline bool says(const std::byte* row, int hidden, std::uint16_t first, std::uint16_t second) {
  const auto* const halves = reinterpret_cast<const std::uint16_t*>(row);
  const auto* const middle = halves + hidden / 2;
  return std::all_of(halves, middle, [&](std::uint16_t v) { return v == first; }) &&
         std::all_of(middle, halves + hidden, [&](std::uint16_t v) { return v == second; });
}

/// When the late rank comes, after its peers: by and by, when some of its pieces are in time.
struct Timing {
  std::barrier<> all{kRanks};
  std::atomic<int> with = 0;     // tokens of a trial
  std::atomic<int> without = 0;  // likewise
  std::chrono::microseconds wait = kDeadline;
  std::chrono::microseconds step = kDeadline / 4;
  std::atomic<int> answered = 0;   // tokens of all trials
  std::atomic<int> with_both = 0;  // ranks of all trials

  void adapt() {
    const int before = with.exchange(0);
    const int after = without.exchange(0);
    if (before > after / 2 && after > before / 2) return;
    wait += before > after ? step : -step;
    if (step > std::chrono::microseconds(5)) step = step * 2 / 3;
  }
};

/// Runs `trial` so many times on every rank, and says what was found.
inline std::string findings_of_trials(int trials,
                                      const std::function<void(World&, support::Findings&)>& trial,
                                      const support::RunOptions& options = {}) {
  const support::RankBody body = [&](World& world, support::Findings& findings) {
    const std::unique_ptr<support::Place> place =
        support::gpu_place(world.rank(), std::chrono::seconds(30));
    support::set_place(place.get());
    for (int number = 0; number < trials; ++number) {
      findings.set_context("trial " + std::to_string(number) + ": ");
      trial(world, findings);
    }
    support::set_place(nullptr);
  };
  support::prepare_gpu_places();
  return support::run_as_threads(kRanks, body, options).text();
}

}  // namespace sluice::faults
