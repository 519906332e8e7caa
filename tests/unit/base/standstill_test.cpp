// SPDX-License-Identifier: MIT
#include "base/standstill.hpp"

#include <gtest/gtest.h>

namespace sluice::base {
namespace {

constexpr std::int64_t kMs = 1'000'000;

TEST(Standstill, CountsWhatAWaiterMayHaveSlept) {
  Standstill standstill(std::chrono::seconds(30));
  std::int64_t now = now_ns();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(standstill.look(now += 20 * kMs), 0);
  EXPECT_EQ(standstill.look(now += 900 * kMs), 0);
  EXPECT_EQ(standstill.look(now += 5000 * kMs), 4980 * kMs);
  EXPECT_EQ(standstill.look(now), 0);
}

TEST(Standstill, OfAShortWaitHalfOfIt) {
  Standstill standstill(std::chrono::milliseconds(500));
  std::int64_t now = now_ns();
  EXPECT_EQ(standstill.look(now += 240 * kMs), 0);
  EXPECT_EQ(standstill.look(now += 260 * kMs), 240 * kMs);
  Standstill shortest(std::chrono::milliseconds(1));
  now = now_ns();
  EXPECT_EQ(shortest.look(now += 90 * kMs), 0);
  EXPECT_EQ(shortest.look(now += 110 * kMs), 90 * kMs);
}

// However often it stands still.
TEST(Standstill, TheWaitEnds) {
  std::int64_t now = now_ns();
  Deadline deadline = Deadline::after(std::chrono::seconds(2));
  Standstill standstill(std::chrono::seconds(2));
  int looks = 0;
  while (now < deadline.at_ns() && looks < 1000) {
    deadline.put_off(standstill.look(now += 1500 * kMs));
    ++looks;
  }
  EXPECT_GE(looks, 99);
  EXPECT_LE(looks, 101);
  Deadline never = Deadline::never();
  never.put_off(1);
  EXPECT_TRUE(never.is_never());
}

}  // namespace
}  // namespace sluice::base
