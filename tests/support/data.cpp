// SPDX-License-Identifier: MIT
#include "support/data.hpp"

#include <array>
#include <cstring>

namespace sluice::support {

namespace {

// A format by its bits: f32 and bf16 share the exponent of f32.
struct Bits {
  int mantissa;
  std::uint32_t bias;
  std::uint32_t exponent_max;
  std::uint32_t sign;
  std::size_t bytes;
};

Bits bits_of(DType dtype) {
  if (dtype == DType::f32) return {23, 127, 255, 0x80000000U, 4};
  if (dtype == DType::f16) return {10, 15, 31, 0x8000U, 2};
  return {7, 127, 255, 0x8000U, 2};
}

std::uint32_t special(const Bits& bits, DataKind kind, Random& random) {
  const std::uint32_t one = 1U << bits.mantissa;
  const std::array<std::uint32_t, 10> codes = {
      0U,                                     // zero
      1U,                                     // the smallest subnormal
      one - 1U,                               // the largest subnormal
      one,                                    // the smallest normal
      bits.exponent_max * one - 1U,           // the largest finite value
      bits.bias * one,                        // 1
      (bits.bias + 8U) * one,                 // 256
      bits.bias * one + 1U,                   // the least value above 1
      bits.exponent_max * one,                // infinity
      bits.exponent_max * one + (one >> 1U),  // NaN
  };
  const std::int64_t choices = kind == DataKind::not_finite ? 10 : 8;
  const std::uint32_t sign = random.chance(50) ? bits.sign : 0U;
  return codes[static_cast<std::size_t>(random.below(choices))] | sign;
}

}  // namespace

std::vector<std::byte> draw_elements(DType dtype, std::size_t count, DataKind kind, Random random) {
  const Bits bits = bits_of(dtype);
  std::vector<std::byte> out(count * bits.bytes);
  // A bf16 exponent of -7..3 fits f16's range as well.
  bool ones = false;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t draw = random.next();
    const auto exponent = bits.bias - 7U + static_cast<std::uint32_t>((draw >> 32U) % 10U);
    const auto fraction = static_cast<std::uint32_t>(draw) & ((1U << bits.mantissa) - 1U);
    std::uint32_t code = (exponent << bits.mantissa) | fraction;
    if ((draw >> 60U) % 2U == 1U) code |= bits.sign;
    if (kind != DataKind::ordinary && (draw >> 48U) % 8U == 0U) code = special(bits, kind, random);
    // Now and then 32 bytes of ones, NaNs all: as memory looks that nobody has written.
    if (kind == DataKind::not_finite && i * bits.bytes % 32U == 0U) ones = random.chance(5);
    if (ones) code = ~0U;
    std::memcpy(out.data() + i * bits.bytes, &code, bits.bytes);  // x86 and ARM: little-endian
  }
  return out;
}

std::vector<std::byte> draw_codes(std::size_t count, Random random) {
  std::vector<std::byte> codes(count);
  for (std::byte& code : codes) code = static_cast<std::byte>(random.below(0xFF));
  return codes;
}

std::vector<float> draw_weights(std::size_t count, DataKind kind, Random random) {
  std::vector<float> weights(count);
  for (float& weight : weights) {
    weight = random.unit() + 0x1p-25F;
    if (kind == DataKind::ordinary || !random.chance(15)) continue;
    const std::array<float, 4> others = {0.0F, -0.0F, -weight, 0x1p-140F};
    weight = others[static_cast<std::size_t>(random.below(4))];
  }
  return weights;
}

}  // namespace sluice::support
