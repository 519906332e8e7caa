// SPDX-License-Identifier: MIT
#include "numeric/convert.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "slow_reference.hpp"
#include "support/sanitizers.hpp"

namespace sluice::test {
namespace {

constexpr int kRandomValues = testing::kSanitized ? 50'000 : 1'000'000;

/// Compares an encoder with the search on every boundary and on random bits.
template <typename Encode>
void expect_encodes_like_search(const NarrowFormat& format, Encode encode) {
  const SearchingEncoder search(format);
  int checked = 0;
  const auto check = [&](float x) {
    ASSERT_EQ(static_cast<std::uint32_t>(encode(x)), search.encode(x))
        << "x = " << x << ", bits " << bits_from_float(x);
    ++checked;
  };
  for (const float x : boundary_values(search)) {
    ASSERT_NO_FATAL_FAILURE(check(x));
  }
  for (std::uint32_t top = 0; top < 65536; ++top) {
    ASSERT_NO_FATAL_FAILURE(check(float_from_bits(top << 16)));
  }
  RandomBits random(1);
  for (int i = 0; i < kRandomValues; ++i) {
    const std::uint32_t bits = random();
    ASSERT_NO_FATAL_FAILURE(check(float_from_bits(bits)));
    // Most random bits are far outside the narrow formats; these are within.
    const std::uint32_t exponent = 90 + bits % 60;
    ASSERT_NO_FATAL_FAILURE(check(float_from_bits((bits & 0x807F'FFFFU) | (exponent << 23))));
  }
  EXPECT_GT(checked, 2 * kRandomValues);
}

TEST(Convert, EncodesBf16LikeSearch) {
  expect_encodes_like_search(kBf16, [](float x) { return numeric::bf16_from_f32(x); });
}

TEST(Convert, EncodesF16LikeSearch) {
  expect_encodes_like_search(kF16, [](float x) { return numeric::f16_from_f32(x); });
}

TEST(Convert, EncodesE4m3LikeSearch) {
  expect_encodes_like_search(kE4m3, [](float x) { return numeric::e4m3_from_f32(x); });
}

TEST(Convert, EveryBf16SurvivesF32) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const float value = numeric::f32_from_bf16(static_cast<std::uint16_t>(code));
    const std::uint32_t magnitude = code & 0x7FFFU;
    if (magnitude > 0x7F80U) {
      ASSERT_TRUE(std::isnan(value));
      ASSERT_EQ(numeric::bf16_from_f32(value), 0x7FFF);
      continue;
    }
    if (magnitude < 0x7F80U) {
      ASSERT_EQ(std::fabs(static_cast<double>(value)), value_of(kBf16, magnitude));
    } else {
      ASSERT_TRUE(std::isinf(value));
    }
    ASSERT_EQ(std::signbit(value), code >= 0x8000U);
    ASSERT_EQ(numeric::bf16_from_f32(value), code);
  }
}

TEST(Convert, EveryF16SurvivesF32) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const float value = numeric::f32_from_f16(static_cast<std::uint16_t>(code));
    const std::uint32_t magnitude = code & 0x7FFFU;
    if (magnitude > 0x7C00U) {
      ASSERT_TRUE(std::isnan(value));
      ASSERT_EQ(numeric::f16_from_f32(value), 0x7FFF);
      continue;
    }
    if (magnitude < 0x7C00U) {
      ASSERT_EQ(std::fabs(static_cast<double>(value)), value_of(kF16, magnitude));
    } else {
      ASSERT_TRUE(std::isinf(value));
    }
    ASSERT_EQ(std::signbit(value), code >= 0x8000U);
    ASSERT_EQ(numeric::f16_from_f32(value), code);
  }
}

TEST(Convert, EveryE4m3SurvivesF32) {
  for (std::uint32_t code = 0; code < 256; ++code) {
    const float value = numeric::f32_from_e4m3(static_cast<std::uint8_t>(code));
    if ((code & 0x7FU) == 0x7FU) {
      ASSERT_TRUE(std::isnan(value));
      ASSERT_EQ(numeric::e4m3_from_f32(value), 0x7F);
      continue;
    }
    ASSERT_EQ(std::fabs(static_cast<double>(value)), value_of(kE4m3, code & 0x7FU));
    ASSERT_EQ(std::signbit(value), code >= 0x80U);
    ASSERT_EQ(numeric::e4m3_from_f32(value), code);
  }
  EXPECT_EQ(numeric::f32_from_e4m3(0x7E), 448.0F);
}

TEST(Convert, EveryNanGetsTheOneCode) {
  for (const std::uint32_t bits : {0x7F80'0001U, 0x7FC0'0000U, 0x7FFF'FFFFU, 0xFF80'0001U,
                                   0xFFC0'0000U, 0xFFFF'FFFFU, 0x7F80'FFFFU, 0xFF81'0000U}) {
    const float nan = float_from_bits(bits);
    EXPECT_TRUE(numeric::is_nan(nan));
    EXPECT_EQ(numeric::bf16_from_f32(nan), 0x7FFF);
    EXPECT_EQ(numeric::f16_from_f32(nan), 0x7FFF);
    EXPECT_EQ(numeric::e4m3_from_f32(nan), 0x7F);
  }
  EXPECT_FALSE(numeric::is_nan(std::numeric_limits<float>::infinity()));
}

TEST(Convert, WorksInConstantExpressions) {
  static_assert(numeric::bf16_from_f32(1.0F) == 0x3F80);
  static_assert(numeric::f16_from_f32(65520.0F) == 0x7C00);
  static_assert(numeric::e4m3_from_f32(-449.0F) == 0xFE);
  static_assert(numeric::f32_from_f16(0x0001) == 0x1p-24F);
  static_assert(numeric::f32_from_e4m3(0x01) == 0x1p-9F);
}

}  // namespace
}  // namespace sluice::test
