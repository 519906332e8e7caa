// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "support/sanitizers.hpp"
#include "transport/memory_fabric.hpp"
#include "unit/transport/talker.hpp"

namespace sluice::transport {

/// How many a test tries. One thread: the thread sanitizer sees nothing there.
inline constexpr std::uint64_t kSeeds = sluice::testing::kThreadSanitizer    ? 30
                                        : sluice::testing::kAddressSanitizer ? 250
                                                                             : 1000;

/// Ranks that talk to each other over a MemoryFabric, one step of each after the other in one thread: so a seed is a
/// schedule.
class Round {
 public:
  /// What a rank uses instead of the fabric's endpoint.
  using Wrap = std::function<std::unique_ptr<Endpoint>(int rank, std::unique_ptr<Endpoint>)>;

  Round(int ranks, int messages, const Adversity& adversity, Scheme scheme, const Load& load = {},
        const Wrap& wrap = {})
      : fabric_(ranks, adversity) {
    for (int rank = 0; rank < ranks; ++rank) {
      memory_.emplace_back(Talker::memory_bytes(ranks, load));
    }
    for (int rank = 0; rank < ranks; ++rank) {
      std::unique_ptr<Endpoint> endpoint = fabric_.endpoint(rank);
      endpoints_.push_back(wrap ? wrap(rank, std::move(endpoint)) : std::move(endpoint));
      auto& memory = memory_[static_cast<std::size_t>(rank)];
      EXPECT_EQ(*endpoints_.back()->add_region(memory.data(), memory.size()), 0);
      talkers_.emplace_back(*endpoints_.back(), memory, rank, ranks, messages, scheme,
                            /*naps=*/false, load);
    }
  }

  MemoryFabric& fabric() { return fabric_; }
  Endpoint& endpoint(int rank) { return *endpoints_[static_cast<std::size_t>(rank)]; }
  Talker& talker(int rank) { return talkers_[static_cast<std::size_t>(rank)]; }

  bool run(int steps_max, const std::set<int>& silent = {}) {
    for (int step = 0; step < steps_max; ++step) {
      bool all = true;
      for (int rank = 0; rank < static_cast<int>(talkers_.size()); ++rank) {
        if (silent.contains(rank)) continue;
        all = talker(rank).step(silent) && all;
      }
      if (all) return true;
    }
    return false;
  }
  std::int64_t wrong() const {
    std::int64_t sum = 0;
    for (const Talker& talker : talkers_) sum += talker.wrong();
    return sum;
  }

 private:
  MemoryFabric fabric_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::vector<Talker> talkers_;
};

}  // namespace sluice::transport
