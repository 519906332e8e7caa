// SPDX-License-Identifier: MIT
// The toolkit's own host conversions must give the same bits as ours, and so must its devices.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "numeric/convert.hpp"
#include "slow_reference.hpp"

namespace sluice::test {
namespace {

template <typename Half>
std::uint16_t half_bits(Half value) {
  std::uint16_t bits = 0;
  static_assert(sizeof value == sizeof bits);
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

void expect_agreement(float x) {
  ASSERT_EQ(numeric::bf16_from_f32(x), half_bits(__float2bfloat16_rn(x)));
  ASSERT_EQ(numeric::f16_from_f32(x), half_bits(__float2half_rn(x)));
  ASSERT_EQ(numeric::e4m3_from_f32(x), __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3));
}

/// Equal bits, or both NaN.
void expect_same(float ours, float theirs) {
  if (std::isnan(theirs)) {
    ASSERT_TRUE(std::isnan(ours));
  } else {
    ASSERT_EQ(bits_from_float(ours), bits_from_float(theirs));
  }
}

TEST(CudaAgreement, DecodesEveryCode) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    ASSERT_NO_FATAL_FAILURE(expect_same(numeric::f32_from_bf16(bits),
                                        __bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{bits}))));
    ASSERT_NO_FATAL_FAILURE(
        expect_same(numeric::f32_from_f16(bits), __half2float(__half(__half_raw{bits}))));
  }
  for (std::uint32_t code = 0; code < 256; ++code) {
    const __half_raw theirs =
        __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), __NV_E4M3);
    ASSERT_NO_FATAL_FAILURE(expect_same(numeric::f32_from_e4m3(static_cast<std::uint8_t>(code)),
                                        __half2float(__half(theirs))));
  }
}

TEST(CudaAgreement, EncodesBoundariesAndRandomBits) {
  for (const NarrowFormat& format : {kBf16, kF16, kE4m3}) {
    for (const float x : boundary_values(SearchingEncoder(format))) {
      ASSERT_NO_FATAL_FAILURE(expect_agreement(x)) << x;
    }
  }
  for (std::uint32_t top = 0; top < 65536; ++top) {
    ASSERT_NO_FATAL_FAILURE(expect_agreement(float_from_bits(top << 16))) << top;
  }
  RandomBits random(4);
  for (int i = 0; i < 1'000'000; ++i) {
    const std::uint32_t bits = random();
    ASSERT_NO_FATAL_FAILURE(expect_agreement(float_from_bits(bits))) << bits;
    const std::uint32_t near = (bits & 0x807F'FFFFU) | ((90U + bits % 60U) << 23);
    ASSERT_NO_FATAL_FAILURE(expect_agreement(float_from_bits(near))) << near;
  }
}

}  // namespace
}  // namespace sluice::test
