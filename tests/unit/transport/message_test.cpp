// SPDX-License-Identifier: MIT
#include "transport/message.hpp"

#include <gtest/gtest.h>

namespace sluice::transport {
namespace {

TEST(Signal, SurvivesItsEncoding) {
  for (const int slot : {0, 1, 4711, Signal::kSlotsMax - 1}) {
    for (const int chunks : {1, 2, 255, 256}) {
      for (const std::uint32_t use : {0U, 1U, 15U}) {
        const Signal signal = Signal::decode(Signal{slot, chunks, use}.encode());
        EXPECT_EQ(signal.slot, slot);
        EXPECT_EQ(signal.chunks, chunks);
        EXPECT_EQ(signal.use, use);
      }
    }
  }
}

TEST(Signal, CountsUsesModuloSixteen) {
  EXPECT_EQ((Signal{3, 1, 16}.encode()), (Signal{3, 1, 0}.encode()));
  EXPECT_EQ((Signal{3, 1, 35}.encode()), (Signal{3, 1, 3}.encode()));
}

TEST(Signal, HasTheBitsOfTheDesign) {
  EXPECT_EQ((Signal{0x12345, 0x100, 0xa}.encode()), 0xaff12345U);
}

TEST(Arrivals, AreCompleteWithTheLastChunk) {
  Arrivals arrivals(4);
  const std::uint32_t chunk = Signal{2, 3, 0}.encode();
  EXPECT_EQ(arrivals.note(chunk), std::nullopt);
  EXPECT_EQ(arrivals.note(chunk), std::nullopt);
  EXPECT_EQ(arrivals.note(chunk), 2);
}

TEST(Arrivals, CountEverySlotByItself) {
  Arrivals arrivals(4);
  const std::uint32_t first = Signal{0, 2, 0}.encode();
  const std::uint32_t second = Signal{1, 2, 0}.encode();
  EXPECT_EQ(arrivals.note(first), std::nullopt);
  EXPECT_EQ(arrivals.note(second), std::nullopt);
  EXPECT_EQ(arrivals.note(second), 1);
  EXPECT_EQ(arrivals.note(first), 0);
}

TEST(Arrivals, DropChunksOfAnotherUse) {
  Arrivals arrivals(1);
  EXPECT_EQ(arrivals.note(Signal{0, 1, 1}.encode()), std::nullopt);
  EXPECT_EQ(arrivals.note(Signal{0, 1, 0}.encode()), 0);
  arrivals.take(0);
  EXPECT_EQ(arrivals.note(Signal{0, 1, 0}.encode()), std::nullopt);
  EXPECT_EQ(arrivals.note(Signal{0, 1, 1}.encode()), 0);
}

TEST(Arrivals, GoRoundAllUses) {
  Arrivals arrivals(1);
  for (std::uint32_t use = 0; use < 100; ++use) {
    EXPECT_EQ(arrivals.note(Signal{0, 2, use}.encode()), std::nullopt);
    EXPECT_EQ(arrivals.note(Signal{0, 2, use}.encode()), 0);
    arrivals.take(0);
  }
}

TEST(Arrivals, DropSlotsThatAreNot) {
  Arrivals arrivals(2);
  EXPECT_EQ(arrivals.note(Signal{2, 1, 0}.encode()), std::nullopt);
  EXPECT_EQ(arrivals.note(0xffffffffU), std::nullopt);
}

TEST(Arrivals, ForgetWhatHadComeOfAnotherSender) {
  Arrivals arrivals(1);
  EXPECT_EQ(arrivals.note(Signal{0, 2, 0}.encode()), std::nullopt);
  arrivals.restart(0, 5);
  EXPECT_EQ(arrivals.note(Signal{0, 2, 0}.encode()), std::nullopt);
  EXPECT_EQ(arrivals.note(Signal{0, 2, 5}.encode()), std::nullopt);
  EXPECT_EQ(arrivals.note(Signal{0, 2, 5}.encode()), 0);
}

}  // namespace
}  // namespace sluice::transport
