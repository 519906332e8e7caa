// SPDX-License-Identifier: MIT
#include "relay/beats.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace sluice::relay {
namespace {

constexpr std::int64_t kPatience = 1000;
constexpr std::int64_t kBegin = 5000;
constexpr std::int64_t kLease = kPatience - kPatience / 20;

/// Beats to a rank that has begun at time 0.
Beats begun() {
  Beats beats(kPatience, kBegin);
  beats.take_echo(*beats.send(0), 0);
  return beats;
}

TEST(Beats, AnEchoIsALeaseFromWhenItsBeatWasSent) {
  Beats beats = begun();
  EXPECT_EQ(beats.lease_ns(), kLease);
  const auto first = beats.send(100);
  const auto second = beats.send(200);
  beats.take_echo(*second, 290);
  EXPECT_EQ(beats.lease_ns(), 200 + kLease);
  // An echo that was overtaken takes nothing away.
  beats.take_echo(*first, 295);
  EXPECT_EQ(beats.lease_ns(), 200 + kLease);
}

TEST(Beats, OneWithoutAnEchoIsMissedWhateverBecameOfOthers) {
  Beats beats = begun();
  static_cast<void>(beats.send(100));
  for (std::int64_t now = 200; now <= 1100; now += 100) {
    beats.take_echo(*beats.send(now), now);
    EXPECT_FALSE(beats.overdue(now));
  }
  EXPECT_TRUE(beats.overdue(1101));
}

TEST(Beats, ALateEchoIsNotMissedAnyMore) {
  Beats beats = begun();
  const auto late = beats.send(100);
  const auto next = beats.send(200);
  beats.take_echo(*late, 1100);
  EXPECT_FALSE(beats.overdue(1200));
  EXPECT_TRUE(beats.overdue(1201));  // Now for the next one.
  beats.take_echo(*next, 1201);
  EXPECT_FALSE(beats.overdue(1200));
}

TEST(Beats, WhoSendsNoneAnyMoreIsOverdueToo) {
  Beats beats = begun();
  beats.take_echo(*beats.send(100), 100);
  EXPECT_FALSE(beats.overdue(1100));
  EXPECT_TRUE(beats.overdue(1101));
}

TEST(Beats, BeforeTheOtherHasBegunFewAreSentAndNoneIsMissed) {
  Beats beats(kPatience, kBegin);
  std::vector<std::uint32_t> sent;
  for (std::int64_t now = 0; now < 4000; now += 100) {
    if (const auto number = beats.send(now)) sent.push_back(*number);
    EXPECT_FALSE(beats.overdue(now));
  }
  EXPECT_EQ(sent.size(), Beats::kFirst);
  // It begins, and answers the first one: the others have the patience from then on.
  beats.take_echo(sent[0], 4000);
  EXPECT_FALSE(beats.overdue(5000));
  EXPECT_TRUE(beats.overdue(5001));
  for (const std::uint32_t number : sent) beats.take_echo(number, 4500);
  EXPECT_TRUE(beats.send(4600).has_value());
  EXPECT_FALSE(beats.overdue(5001));
}

TEST(Beats, WhoDoesNotBeginIsMissedAtTheEndOfThePatience) {
  Beats beats(kPatience, kBegin);
  static_cast<void>(beats.send(0));
  EXPECT_FALSE(beats.overdue(kBegin + kPatience));
  EXPECT_TRUE(beats.overdue(kBegin + kPatience + 1));
  EXPECT_EQ(beats.lease_ns(), 0);
}

TEST(Beats, NoNumberIsThatOfTwo) {
  Beats beats = begun();
  std::vector<std::uint32_t> sent;
  for (std::size_t i = 0; i < Beats::kMost; ++i) {
    const auto number = beats.send(static_cast<std::int64_t>(i));
    ASSERT_TRUE(number.has_value());
    sent.push_back(*number % transport::Signal::kNumbers);
  }
  EXPECT_FALSE(beats.send(5000).has_value());
  // Those behind it stay until the oldest was echoed.
  beats.take_echo(sent[1], 5000);
  EXPECT_FALSE(beats.send(5000).has_value());
  beats.take_echo(sent[0], 5000);
  EXPECT_TRUE(beats.send(5000).has_value());
  EXPECT_TRUE(beats.send(5000).has_value());
  EXPECT_FALSE(beats.send(5000).has_value());
}

TEST(Beats, NumbersBeginAgain) {
  Beats beats = begun();
  for (std::int64_t i = 1; i <= 3 * static_cast<std::int64_t>(Beats::kMost); ++i) {
    const auto number = beats.send(i);
    ASSERT_TRUE(number.has_value());
    const transport::Signal signal = transport::Signal::numbered(7, *number);
    const transport::Signal come = transport::Signal::decode(signal.encode());
    ASSERT_EQ(come.slot, 7);
    beats.take_echo(come.number(), i);
    ASSERT_EQ(beats.lease_ns(), i + kLease);
  }
}

TEST(Beats, NumbersOfNoBeatAreNothing) {
  Beats beats = begun();
  const std::uint32_t number = *beats.send(100);
  for (const std::uint32_t foreign : {number + 1, number - 1, number + 100}) {
    beats.take_echo(foreign, 100);
  }
  EXPECT_EQ(beats.lease_ns(), kLease);
  beats.take_echo(number, 100);
  beats.take_echo(number, 100);  // Twice.
  EXPECT_EQ(beats.lease_ns(), 100 + kLease);
  EXPECT_TRUE(beats.overdue(1101));
}

}  // namespace
}  // namespace sluice::relay
