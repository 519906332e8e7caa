// SPDX-License-Identifier: MIT
// The reference's number formats against values worked out by hand.
#include "reference/small_float.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "reference/quantise.hpp"

namespace sluice::reference {
namespace {

TEST(SmallFloat, KnownCodes) {
  EXPECT_EQ(bf16_format().encode(1.0F), 0x3F80U);
  EXPECT_EQ(bf16_format().encode(-2.0F), 0xC000U);
  EXPECT_EQ(f16_format().encode(1.0F), 0x3C00U);
  EXPECT_EQ(f16_format().encode(65504.0F), 0x7BFFU);
  EXPECT_EQ(e4m3_format().encode(1.0F), 0x38U);
  EXPECT_EQ(e4m3_format().encode(448.0F), 0x7EU);
  EXPECT_EQ(e4m3_format().decode(0x7EU), 448.0F);
  EXPECT_EQ(e4m3_format().decode(0x01U), std::ldexp(1.0F, -9));
  EXPECT_TRUE(std::isnan(e4m3_format().decode(0x7FU)));
  EXPECT_TRUE(std::isnan(e4m3_format().decode(0xFFU)));
}

TEST(SmallFloat, TiesGoToTheEvenCode) {
  // bf16 has 7 fraction bits: 1 + 2^-8 lies half way between 1 (even) and 1 + 2^-7 (odd).
  EXPECT_EQ(bf16_format().encode(1.0F + std::ldexp(1.0F, -8)), 0x3F80U);
  EXPECT_EQ(bf16_format().encode(1.0F + 3.0F * std::ldexp(1.0F, -8)), 0x3F82U);
  EXPECT_EQ(bf16_format().encode(std::nextafter(1.0F + std::ldexp(1.0F, -8), 2.0F)), 0x3F81U);
  EXPECT_EQ(f16_format().encode(2049.0F), f16_format().encode(2048.0F));
  EXPECT_EQ(e4m3_format().encode(17.0F), e4m3_format().encode(16.0F));
  EXPECT_EQ(e4m3_format().encode(19.0F), e4m3_format().encode(20.0F));
}

TEST(SmallFloat, EndsOfTheRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(bf16_format().encode(std::numeric_limits<float>::max()), 0x7F80U);
  EXPECT_EQ(bf16_format().encode(infinity), 0x7F80U);
  EXPECT_EQ(f16_format().encode(65519.0F), 0x7BFFU);
  EXPECT_EQ(f16_format().encode(65520.0F), 0x7C00U);
  EXPECT_EQ(e4m3_format().encode(1.0e9F), 0x7EU);
  EXPECT_EQ(e4m3_format().encode(-infinity), 0xFEU);
  EXPECT_EQ(e4m3_format().encode(std::ldexp(1.0F, -10)), 0x00U);
  EXPECT_EQ(e4m3_format().encode(-std::ldexp(1.0F, -10)), 0x80U);
  EXPECT_EQ(e4m3_format().encode(1.5F * std::ldexp(1.0F, -10)), 0x01U);
  EXPECT_EQ(bf16_format().encode(std::numeric_limits<float>::quiet_NaN()), 0x7FFFU);
  EXPECT_EQ(bf16_format().encode(std::numeric_limits<float>::denorm_min()), 0x0000U);
  EXPECT_EQ(bf16_format().encode(std::ldexp(1.0F, -133)), 0x0001U);
}

TEST(SmallFloat, EveryCodeSurvivesARoundTrip) {
  const std::vector<const SmallFormat*> formats = {&bf16_format(), &f16_format(), &e4m3_format()};
  const std::vector<std::uint32_t> codes = {65536U, 65536U, 256U};
  for (std::size_t f = 0; f < formats.size(); ++f) {
    for (std::uint32_t code = 0; code < codes[f]; ++code) {
      const float value = formats[f]->decode(code);
      if (std::isnan(value)) continue;
      ASSERT_EQ(formats[f]->encode(value), code) << "format " << f;
    }
  }
}

TEST(SmallFloat, TheMiddleOfTwoValuesDivides) {
  for (const SmallFormat* const format : {&bf16_format(), &f16_format(), &e4m3_format()}) {
    const float infinity = std::numeric_limits<float>::infinity();
    for (std::uint32_t code = 0;; ++code) {
      const float below = format->decode(code);
      const float above = format->decode(code + 1);
      if (std::isnan(above) || std::isinf(above)) break;
      const auto middle =
          static_cast<float>((static_cast<double>(below) + static_cast<double>(above)) / 2.0);
      ASSERT_EQ(format->encode(middle), code % 2 == 0 ? code : code + 1);
      ASSERT_EQ(format->encode(std::nextafter(middle, 0.0F)), code);
      ASSERT_EQ(format->encode(std::nextafter(middle, infinity)), code + 1);
    }
  }
}

std::vector<std::byte> floats(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * 4);
  for (std::size_t i = 0; i < values.size(); ++i) store(DType::f32, bytes.data(), i, values[i]);
  return bytes;
}

TEST(Quantise, GroupsByHand) {
  // Two groups of 32 and a short one of 16: amax 448 (scale 1), 3.5 (scale 2^-7), zeros (floor).
  std::vector<float> values(80, 0.0F);
  values[0] = 448.0F;
  values[1] = -1.0F;
  values[32] = 3.5F;
  values[33] = 0.25F;
  const std::vector<std::byte> row = floats(values);
  Codec codec{CodecKind::fp8, ScaleForm::f32, 32};
  EncodedRow encoded = encode_row(codec, DType::f32, row.data(), values.size());
  ASSERT_EQ(encoded.scales.size(), 12U);
  EXPECT_EQ(load(DType::f32, encoded.scales.data(), 0), 1.0F);
  EXPECT_EQ(load(DType::f32, encoded.scales.data(), 1), 0.0078125F);
  EXPECT_EQ(load(DType::f32, encoded.scales.data(), 2), 1e-4F / 448.0F);
  EXPECT_EQ(encoded.elements[0], std::byte{0x7E});
  EXPECT_EQ(encoded.elements[1], std::byte{0xB8});
  EXPECT_EQ(encoded.elements[33], std::byte{0x60});  // 0.25 / 2^-7 = 32
  EXPECT_EQ(encoded.elements[79], std::byte{0x00});

  codec.scale_form = ScaleForm::ue8m0;
  encoded = encode_row(codec, DType::f32, row.data(), values.size());
  ASSERT_EQ(encoded.scales.size(), 4U);
  EXPECT_EQ(encoded.scales[0], std::byte{127});
  EXPECT_EQ(encoded.scales[1], std::byte{120});
  EXPECT_EQ(encoded.scales[2], std::byte{105});  // 1e-4 / 448 = 2.2e-7, above 2^-23: 2^-22
  EXPECT_EQ(encoded.scales[3], std::byte{0});
}

TEST(Quantise, PowersOfTwoRoundUp) {
  const Codec codec{CodecKind::fp8, ScaleForm::pow2, 128};
  for (const auto& [amax, scale] : std::vector<std::pair<float, float>>{
           {448.0F, 1.0F}, {448.5F, 2.0F}, {447.0F, 1.0F}, {896.0F, 2.0F}, {224.0F, 0.5F}}) {
    const std::vector<std::byte> row = floats(std::vector<float>(16, amax));
    const EncodedRow encoded = encode_row(codec, DType::f32, row.data(), 16);
    EXPECT_EQ(load(DType::f32, encoded.scales.data(), 0), scale) << "amax " << amax;
  }
}

TEST(Quantise, InfinityAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values(16, 1.0F);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  const Codec plain{CodecKind::fp8, ScaleForm::f32, 128};
  EncodedRow encoded = encode_row(plain, DType::f32, floats(values).data(), 16);
  EXPECT_EQ(load(DType::f32, encoded.scales.data(), 0), 1.0F / 448.0F);
  EXPECT_EQ(encoded.elements[3], std::byte{0x7F});
  EXPECT_EQ(encoded.elements[4], std::byte{0x7E});

  values[5] = -infinity;
  encoded = encode_row(plain, DType::f32, floats(values).data(), 16);
  for (const float value : decode_row(plain, encoded.elements.data(), encoded.scales.data(), 16)) {
    EXPECT_TRUE(std::isnan(value));
  }
  const Codec packed{CodecKind::fp8, ScaleForm::ue8m0, 128};
  encoded = encode_row(packed, DType::f32, floats(values).data(), 16);
  EXPECT_EQ(encoded.scales[0], std::byte{254});
  EXPECT_EQ(encoded.elements[5], std::byte{0xFE});
  EXPECT_EQ(encoded.elements[0], std::byte{0x00});
}

}  // namespace
}  // namespace sluice::reference
