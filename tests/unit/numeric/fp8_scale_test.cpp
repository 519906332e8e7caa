// SPDX-License-Identifier: MIT
#include "numeric/fp8_scale.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "slow_reference.hpp"

namespace sluice::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Fp8Scale, AmaxIgnoresNanAndSign) {
  float amax = numeric::kAmaxFloor;
  EXPECT_EQ(amax, 1e-4F);
  amax = numeric::wider_amax(amax, 0.0F);
  amax = numeric::wider_amax(amax, 9e-5F);
  EXPECT_EQ(amax, 1e-4F);
  amax = numeric::wider_amax(amax, -3.0F);
  amax = numeric::wider_amax(amax, kNan);
  amax = numeric::wider_amax(amax, -kNan);
  amax = numeric::wider_amax(amax, 2.0F);
  EXPECT_EQ(amax, 3.0F);
  EXPECT_EQ(numeric::wider_amax(amax, -kInfinity), kInfinity);
}

TEST(Fp8Scale, PowerOfTwoAboveIsTheSmallestOne) {
  RandomBits random(2);
  for (int i = 0; i < 200'000; ++i) {
    const std::uint32_t exponent = 1 + random.below(252);
    const std::uint32_t mantissa = i % 3 == 0 ? static_cast<std::uint32_t>(i % 2) : random() >> 9;
    const float value = float_from_bits((exponent << 23) | mantissa);
    const float power = numeric::power_of_two_above(value);
    int unused = 0;
    ASSERT_EQ(std::frexp(power, &unused), 0.5F);
    ASSERT_GE(power, value);
    ASSERT_LT(power / 2, value);
  }
  EXPECT_EQ(numeric::power_of_two_above(kInfinity), kInfinity);
}

TEST(Fp8Scale, FormsOfKnownGroups) {
  // 448 makes the scale exactly 1; the next float above rounds up to 2 in the power-of-two forms.
  EXPECT_EQ(numeric::fp8_scale(448.0F, ScaleForm::f32), 1.0F);
  EXPECT_EQ(numeric::fp8_scale(448.0F, ScaleForm::pow2), 1.0F);
  EXPECT_EQ(numeric::fp8_scale(448.0F, ScaleForm::ue8m0), 1.0F);
  EXPECT_EQ(numeric::fp8_scale(449.0F, ScaleForm::pow2), 2.0F);
  EXPECT_EQ(numeric::fp8_scale(1e-4F, ScaleForm::f32), 1e-4F / 448.0F);
  EXPECT_EQ(numeric::fp8_scale(1e-4F, ScaleForm::pow2), 0x1p-22F);
  EXPECT_EQ(numeric::fp8_scale(std::numeric_limits<float>::max(), ScaleForm::pow2), 0x1p120F);
  EXPECT_EQ(numeric::fp8_scale(kInfinity, ScaleForm::f32), kInfinity);
  EXPECT_EQ(numeric::fp8_scale(kInfinity, ScaleForm::pow2), kInfinity);
  EXPECT_EQ(numeric::fp8_scale(kInfinity, ScaleForm::ue8m0), 0x1p127F);
  EXPECT_EQ(numeric::ue8m0_from_f32(kInfinity), 254);
}

TEST(Fp8Scale, Ue8m0ExponentsAreTheirPowers) {
  for (int exponent = 0; exponent < 255; ++exponent) {
    const float power = numeric::f32_from_ue8m0(static_cast<std::uint8_t>(exponent));
    ASSERT_EQ(static_cast<double>(power), std::ldexp(1.0, exponent - 127));
    if (exponent > 0) {
      ASSERT_EQ(numeric::ue8m0_from_f32(power), exponent);
    }
  }
  EXPECT_TRUE(std::isnan(numeric::f32_from_ue8m0(255)));
}

TEST(Fp8Scale, InfiniteAmaxFollowsItsRules) {
  const auto code = [](float x, ScaleForm form) {
    return numeric::fp8_code(x, kInfinity, numeric::fp8_scale(kInfinity, form), form);
  };
  for (const ScaleForm form : {ScaleForm::f32, ScaleForm::pow2}) {
    EXPECT_EQ(code(kInfinity, form), 0x7F);
    EXPECT_EQ(code(-kInfinity, form), 0x7F);
    EXPECT_EQ(code(3.0F, form), 0x00);
    EXPECT_EQ(code(-3.0F, form), 0x80);
  }
  EXPECT_EQ(code(kInfinity, ScaleForm::ue8m0), 0x7E);
  EXPECT_EQ(code(-kInfinity, ScaleForm::ue8m0), 0xFE);
  EXPECT_EQ(code(0x1p127F, ScaleForm::ue8m0), 0x38);
  EXPECT_EQ(code(-3.0F, ScaleForm::ue8m0), 0x80);
  EXPECT_EQ(code(kNan, ScaleForm::ue8m0), 0x7F);
}

TEST(Fp8Scale, MultiplyingByTheReciprocalIsDividing) {
  RandomBits random(3);
  for (int i = 0; i < 200'000; ++i) {
    const float magnitude = float_from_bits(random() % 0x7F80'0000U);
    const float amax = numeric::wider_amax(numeric::kAmaxFloor, magnitude);
    const float x = i % 4 == 0 ? magnitude : float_from_bits(random() % bits_from_float(amax));
    for (const ScaleForm form : {ScaleForm::pow2, ScaleForm::ue8m0}) {
      const float scale = numeric::fp8_scale(amax, form);
      const float multiplier = numeric::fp8_multiplier(amax, scale, form);
      ASSERT_EQ(bits_from_float(x * multiplier), bits_from_float(x / scale));
    }
  }
}

}  // namespace
}  // namespace sluice::test
