// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernel_sets.hpp"
#include "random_rows.hpp"

namespace sluice::test {
namespace {

constexpr std::array kForms{ScaleForm::f32, ScaleForm::pow2, ScaleForm::ue8m0};
constexpr std::array kGroups{32, 64, 128, 256};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Encoded {
  Row codes;
  Row scales;  // as bytes
};

Encoded encode(const codec::RowKernels& kernels, const Row& row, const Codec& codec, int elements,
               std::size_t misalignment) {
  Encoded result{
      Row(DType::e4m3, elements, misalignment),
      Row(DType::e4m3, static_cast<int>(codec::scale_bytes(codec, elements)), misalignment)};
  kernels.quantise(row.data(), row.dtype(), codec, elements,
                   reinterpret_cast<std::uint8_t*>(result.codes.data()), result.scales.data());
  return result;
}

/// The definition in docs/number-formats.md, with frexp and search where the library has bits.
class Definition {
 public:
  Definition(const Row& row, ScaleForm form, int begin, int end) : form_(form) {
    float amax = 1e-4F;
    for (int i = begin; i < end; ++i) {
      const float magnitude = std::fabs(row.value(i));
      if (!std::isnan(magnitude)) {
        amax = std::max(amax, magnitude);
      }
    }
    multiplier_ = 448.0F / amax;
    scale_ = amax / 448.0F;
    if (form != ScaleForm::f32 && !std::isinf(scale_)) {
      int exponent = 0;
      const float fraction = std::frexp(scale_, &exponent);
      scale_ = std::ldexp(1.0F, fraction == 0.5F ? exponent - 1 : exponent);
    }
    if (form == ScaleForm::ue8m0 && std::isinf(scale_)) {
      scale_ = 0x1p127F;
    }
  }

  float scale() const { return scale_; }
  std::uint32_t exponent() const { return static_cast<std::uint32_t>(std::ilogb(scale_) + 127); }
  std::uint32_t code(float x) const {
    static const SearchingEncoder search(kE4m3);
    return search.encode(form_ == ScaleForm::f32 ? x * multiplier_ : x / scale_);
  }

 private:
  ScaleForm form_;
  float multiplier_ = 0.0F;
  float scale_ = 0.0F;
};

/// Compares a row's codes and scales with the definition.
void expect_definition(const codec::RowKernels& kernels, const Row& row, const Codec& codec,
                       int elements, std::size_t misalignment) {
  const Encoded encoded = encode(kernels, row, codec, elements, misalignment);
  ASSERT_TRUE(encoded.codes.guards_intact());
  ASSERT_TRUE(encoded.scales.guards_intact());
  int group = 0;
  for (int begin = 0; begin < elements; begin += codec.group, ++group) {
    const int end = std::min(begin + codec.group, elements);
    const Definition definition(row, codec.scale_form, begin, end);
    if (codec.scale_form == ScaleForm::ue8m0) {
      ASSERT_EQ(encoded.scales.bits(group), definition.exponent()) << "group " << group;
    } else {
      float scale = 0.0F;
      std::memcpy(&scale, encoded.scales.data() + group * 4, sizeof scale);
      ASSERT_EQ(bits_from_float(scale), bits_from_float(definition.scale())) << "group " << group;
    }
    for (int i = begin; i < end; ++i) {
      ASSERT_EQ(encoded.codes.bits(i), definition.code(row.value(i)))
          << "element " << i << " = " << row.value(i) << ", scale " << definition.scale();
    }
  }
  if (codec.scale_form == ScaleForm::ue8m0) {
    for (; group % 4 != 0; ++group) {
      ASSERT_EQ(encoded.scales.bits(group), 0U);
    }
  }
}

class Quantise : public KernelSetTest {
 protected:
  /// All forms and groups.
  static void expect_definition_everywhere(const Row& row, int elements) {
    for (const ScaleForm form : kForms) {
      for (const int group : kGroups) {
        SCOPED_TRACE(testing::Message()
                     << "form " << static_cast<int>(form) << ", group " << group);
        expect_definition(kernels(), row, {CodecKind::fp8, form, group}, elements, 1);
        if (HasFatalFailure()) {
          return;
        }
      }
    }
  }
};

TEST_P(Quantise, HiddenSizesOfModels) {
  RandomBits random(21);
  for (const int hidden : {16, 48, 7168, 7184}) {
    for (const DType dtype : kRowTypes) {
      const Row row = Row::random(random, dtype, hidden, Content::ordinary);
      ASSERT_NO_FATAL_FAILURE(expect_definition_everywhere(row, hidden)) << hidden;
    }
  }
}

TEST_P(Quantise, RandomRowsAndLengths) {
  RandomBits random(22);
  for (int round = 0; round < 3000; ++round) {
    const int elements = static_cast<int>(random.below(600));
    const Row row = Row::random(random, kRowTypes[random.below(3)], elements,
                                kContents[random.below(kContents.size())]);
    const Codec codec{CodecKind::fp8, kForms[random.below(3)], kGroups[random.below(4)]};
    ASSERT_NO_FATAL_FAILURE(expect_definition(kernels(), row, codec, elements, random.below(32)))
        << "round " << round << ", " << elements << " elements, form "
        << static_cast<int>(codec.scale_form) << ", group " << codec.group << ", dtype "
        << static_cast<int>(row.dtype());
  }
}

/// Groups whose largest element is 448, so that scale and multiplier are exactly 1: every float at
/// and beside a boundary of e4m3 meets the rounding itself.
TEST_P(Quantise, RoundsEveryBoundary) {
  std::vector<float> values;
  for (const float value : boundary_values(SearchingEncoder(kE4m3))) {
    if (std::fabs(value) <= 448.0F) {
      if (values.size() % 32 == 0) {
        values.push_back(448.0F);
      }
      values.push_back(value);
    }
  }
  ASSERT_GT(values.size(), 1400U);
  const auto elements = static_cast<int>(values.size());
  Row row(DType::f32, elements, 1);
  for (int i = 0; i < elements; ++i) {
    row.set(i, bits_from_float(values[static_cast<std::size_t>(i)]));
  }
  for (const ScaleForm form : kForms) {
    ASSERT_NO_FATAL_FAILURE(
        expect_definition(kernels(), row, {CodecKind::fp8, form, 32}, elements, 0));
  }
}

/// Every finite value of the 16-bit formats, in groups of neighbours and beside a group's 1.
TEST_P(Quantise, EveryFiniteCode) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const std::uint32_t one = dtype == DType::bf16 ? 0x3F80 : 0x3C00;
    const int finite = dtype == DType::bf16 ? 0x7F80 : 0x7C00;
    for (const bool beside_one : {false, true}) {
      Row row(dtype, finite, 1);
      for (int code = 0; code < finite; ++code) {
        const std::uint32_t sign = code % 3 == 0 ? 0x8000U : 0U;
        const bool is_one = beside_one && code % 128 == 5;
        row.set(code, is_one ? one : sign | static_cast<std::uint32_t>(code));
      }
      for (const ScaleForm form : kForms) {
        ASSERT_NO_FATAL_FAILURE(
            expect_definition(kernels(), row, {CodecKind::fp8, form, 128}, finite, 0));
      }
    }
  }
}

TEST_P(Quantise, ZerosHaveAFiniteScale) {
  Row row(DType::bf16, 256, 0);
  for (int i = 0; i < 256; ++i) {
    row.set(i, i % 2 == 0 ? 0U : 0x8000U);
  }
  const Encoded encoded = encode(kernels(), row, {CodecKind::fp8, ScaleForm::f32, 128}, 256, 0);
  float scale = 0.0F;
  std::memcpy(&scale, encoded.scales.data(), sizeof scale);
  EXPECT_EQ(scale, 1e-4F / 448.0F);
  for (int i = 0; i < 256; ++i) {
    ASSERT_EQ(encoded.codes.bits(i), i % 2 == 0 ? 0x00U : 0x80U);
  }
  ASSERT_NO_FATAL_FAILURE(expect_definition_everywhere(row, 256));
}

TEST_P(Quantise, OneSpecialElementAtEachPlace) {
  RandomBits random(23);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float special : {nan, -nan, kInfinity, -kInfinity, 0x1p-149F, -0x1p-140F,
                              std::numeric_limits<float>::max()}) {
    for (int place = 0; place < 80; ++place) {
      Row row = Row::random(random, DType::f32, 80, Content::ordinary);
      row.set(place, bits_from_float(special));
      for (const ScaleForm form : kForms) {
        ASSERT_NO_FATAL_FAILURE(
            expect_definition(kernels(), row, {CodecKind::fp8, form, 64}, 80, 0))
            << special << " at " << place;
      }
    }
  }
}

/// A decoder of an infinite group in the float forms sees only NaN.
TEST_P(Quantise, InfinityMakesItsGroupNan) {
  Row row(DType::f32, 64, 0);
  for (int i = 0; i < 64; ++i) {
    row.set(i, bits_from_float(i == 9 ? -kInfinity : 1.0F));
  }
  for (const ScaleForm form : {ScaleForm::f32, ScaleForm::pow2}) {
    const Encoded encoded = encode(kernels(), row, {CodecKind::fp8, form, 32}, 64, 0);
    std::array<float, 2> scales{};
    std::memcpy(scales.data(), encoded.scales.data(), sizeof scales);
    EXPECT_EQ(scales[0], kInfinity);
    EXPECT_TRUE(std::isfinite(scales[1]));
    for (int i = 0; i < 32; ++i) {
      const std::uint32_t code = encoded.codes.bits(i);
      ASSERT_TRUE((code & 0x7FU) == 0 || code == 0x7FU) << i;
    }
  }
}

TEST_P(Quantise, NeverEmitsTheNegativeNan) {
  RandomBits random(24);
  for (int round = 0; round < 50; ++round) {
    const Row row = Row::random(random, kRowTypes[random.below(3)], 1024, Content::specials);
    for (const ScaleForm form : kForms) {
      const Encoded encoded = encode(kernels(), row, {CodecKind::fp8, form, 32}, 1024, 0);
      for (int i = 0; i < 1024; ++i) {
        ASSERT_NE(encoded.codes.bits(i), 0xFFU);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Quantise, testing::ValuesIn(kernel_sets()), kernel_set_name);

}  // namespace
}  // namespace sluice::test
