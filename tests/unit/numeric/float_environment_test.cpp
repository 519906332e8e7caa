// SPDX-License-Identifier: MIT
#include "numeric/float_environment.hpp"

#include <gtest/gtest.h>

#include "caller_mode.hpp"
#include "numeric/convert.hpp"
#include "slow_reference.hpp"

namespace sluice::test {
namespace {

// Arithmetic at run time, in the mode of the moment: neither inlined nor folded.
[[gnu::noinline]] float add(volatile const float& a, volatile const float& b) {
  return a + b;
}
[[gnu::noinline]] float multiply(volatile const float& a, volatile const float& b) {
  return a * b;
}

constexpr float kSmallestNormal = 0x1p-126F;
constexpr float kHalf = 0.5F;
constexpr float kOne = 1.0F;
constexpr float kTiny = 0x1p-60F;

TEST(FloatEnvironment, OverridesTheCallersModeAndRestoresIt) {
  const HostileMode hostile;
  const std::uint64_t callers_mode = HostileMode::mode();
  EXPECT_FALSE(numeric::FloatEnvironment::active());
  // The hostile mode is real; else the test below would show nothing.
  EXPECT_GT(add(kOne, kTiny), 1.0F);
#if defined(__x86_64__) || defined(__aarch64__)
  EXPECT_EQ(bits_from_float(multiply(kSmallestNormal, kHalf)), 0U);
#endif
  {
    const numeric::FloatEnvironment environment;
    EXPECT_TRUE(numeric::FloatEnvironment::active());
    EXPECT_EQ(bits_from_float(add(kOne, kTiny)), bits_from_float(1.0F));
    EXPECT_EQ(bits_from_float(multiply(kSmallestNormal, kHalf)), 0x0040'0000U);
    {
      const numeric::FloatEnvironment nested;
      EXPECT_EQ(bits_from_float(add(kOne, kTiny)), bits_from_float(1.0F));
    }
    EXPECT_TRUE(numeric::FloatEnvironment::active());
  }
  EXPECT_EQ(HostileMode::mode(), callers_mode);
  EXPECT_GT(add(kOne, kTiny), 1.0F);
}

TEST(FloatEnvironment, LeavesARightModeAlone) {
  const std::uint64_t before = HostileMode::mode();
  {
    const numeric::FloatEnvironment environment;
    EXPECT_EQ(HostileMode::mode(), before);
  }
  EXPECT_EQ(HostileMode::mode(), before);
}

TEST(FloatEnvironment, ConversionsDoNotNeedIt) {
  const HostileMode hostile;
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    if ((code & 0x7FFFU) <= 0x7F80U) {
      ASSERT_EQ(numeric::bf16_from_f32(numeric::f32_from_bf16(bits)), bits);
    }
    if ((code & 0x7FFFU) <= 0x7C00U) {
      ASSERT_EQ(numeric::f16_from_f32(numeric::f32_from_f16(bits)), bits);
    }
  }
  // Halfway cases, which the mode would round up, and a subnormal that it would flush.
  EXPECT_EQ(numeric::bf16_from_f32(float_from_bits(0x3F80'8000U)), 0x3F80);
  EXPECT_EQ(numeric::bf16_from_f32(float_from_bits(0x0000'8001U)), 0x0001);
  EXPECT_EQ(numeric::f16_from_f32(float_from_bits(0x3F80'1000U)), 0x3C00);
  EXPECT_EQ(numeric::e4m3_from_f32(float_from_bits(0x3F88'0000U)), 0x38);
}

}  // namespace
}  // namespace sluice::test
