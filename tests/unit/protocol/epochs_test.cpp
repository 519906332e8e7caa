// SPDX-License-Identifier: MIT
#include "protocol/epochs.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace sluice::protocol {
namespace {

TEST(Epochs, BanksGoRound) {
  for (int in_flight = 1; in_flight <= 4; ++in_flight) {
    const int banks = banks_for(in_flight);
    EXPECT_EQ(banks, 2 * in_flight + 1);
    for (std::uint64_t epoch = 1; epoch < 100; ++epoch) {
      std::set<int> window;
      for (int i = 0; i < banks; ++i) {
        const int bank = bank_of(epoch + static_cast<std::uint64_t>(i), banks);
        EXPECT_GE(bank, 0);
        EXPECT_LT(bank, banks);
        window.insert(bank);
      }
      EXPECT_EQ(window.size(), static_cast<std::size_t>(banks)) << epoch;
      EXPECT_EQ(bank_of(epoch, banks), bank_of(epoch + static_cast<std::uint64_t>(banks), banks));
    }
  }
}

TEST(Epochs, StagesGoRound) {
  for (int stages = 1; stages <= 4; ++stages) {
    for (std::uint64_t epoch = 1; epoch < 50; ++epoch) {
      EXPECT_NE(stages == 1, stage_of(epoch, stages) != stage_of(epoch + 1, stages));
      EXPECT_EQ(stage_of(epoch, stages),
                stage_of(epoch + static_cast<std::uint64_t>(stages), stages));
    }
  }
}

// The guard asks for exactly the epoch whose place is written again.
TEST(Epochs, GuardIsTheEpochThatIsOverwritten) {
  for (int depth = 1; depth <= 9; ++depth) {
    for (std::uint64_t epoch = 1; epoch < 60; ++epoch) {
      const std::uint64_t guard = guard_epoch(epoch, depth);
      if (epoch <= static_cast<std::uint64_t>(depth)) {
        EXPECT_EQ(guard, 0U) << "nothing was there before";
        continue;
      }
      EXPECT_EQ(guard, epoch - static_cast<std::uint64_t>(depth));
      EXPECT_EQ(bank_of(guard, depth), bank_of(epoch, depth));
    }
  }
}

// In every order of sends and receives that d in flight allow, a sender of epoch m has a cell m - d
// of every peer, which was sent when that peer had read m - 2d: the guard of 2d + 1 banks never
// waits.
TEST(Epochs, TheGuardNeverWaitsInLockStep) {
  for (int in_flight = 1; in_flight <= 4; ++in_flight) {
    const auto d = static_cast<std::uint64_t>(in_flight);
    for (std::uint64_t epoch = 1; epoch < 60; ++epoch) {
      const std::uint64_t received = epoch > d ? epoch - d : 0;
      // What the slowest peer had read when it sent `received`.
      const std::uint64_t told_at_least = received > d ? received - d : 0;
      EXPECT_LE(guard_epoch(epoch, banks_for(in_flight)), told_at_least);
    }
  }
}

// Epochs do not end in practice, but nothing breaks near the largest either.
TEST(Epochs, LargeNumbers) {
  const std::uint64_t large = ~std::uint64_t{0} - 10;
  EXPECT_EQ(guard_epoch(large, 5), large - 5);
  EXPECT_EQ(static_cast<std::uint64_t>(bank_of(large, 5)), large % 5);
}

}  // namespace
}  // namespace sluice::protocol
