// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "numeric/host_device.hpp"

/// The formats' scalar conversions, once, for host and device; docs/number-formats.md defines them.
/// Narrowing is integer arithmetic and widening is exact, so that neither the rounding mode, nor
/// flush-to-zero, nor the compiler's contraction can change a bit.
namespace sluice::numeric {

inline constexpr std::uint32_t kF32Sign = 0x8000'0000U;
inline constexpr std::uint32_t kF32Infinity = 0x7F80'0000U;
inline constexpr std::uint32_t kF32Mantissa = 0x007F'FFFFU;
inline constexpr std::uint32_t kF32HiddenBit = 0x0080'0000U;
inline constexpr std::uint32_t kF32QuietNan = 0x7FC0'0000U;

inline constexpr std::uint16_t kBf16Nan = 0x7FFFU;
inline constexpr std::uint16_t kF16Nan = 0x7FFFU;
inline constexpr std::uint16_t kF16Infinity = 0x7C00U;
inline constexpr std::uint8_t kE4m3Nan = 0x7FU;
inline constexpr std::uint8_t kE4m3MaxCode = 0x7EU;
inline constexpr float kE4m3Max = 448.0F;

SLUICE_INLINE constexpr std::uint32_t bits_of(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}

SLUICE_INLINE constexpr float float_of(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

/// Whether the value is NaN, by its bits: no comparison that fast-math could remove.
SLUICE_INLINE constexpr bool is_nan(float value) {
  return (bits_of(value) & ~kF32Sign) > kF32Infinity;
}

/// value / 2^shift rounded to nearest even; 1 <= shift <= 31 and value < 2^31.
SLUICE_INLINE constexpr std::uint32_t shift_right_nearest_even(std::uint32_t value, int shift) {
  const std::uint32_t half_less_one = (1U << (shift - 1)) - 1U;
  return (value + half_less_one + ((value >> shift) & 1U)) >> shift;
}

SLUICE_INLINE constexpr float f32_from_bf16(std::uint16_t value) {
  return float_of(static_cast<std::uint32_t>(value) << 16);
}

/// Every NaN becomes 0x7FFF.
SLUICE_INLINE constexpr std::uint16_t bf16_from_f32(float value) {
  const std::uint32_t bits = bits_of(value);
  if ((bits & ~kF32Sign) > kF32Infinity) {
    return kBf16Nan;
  }
  // The carry out of the mantissa is the next exponent, and out of the largest value infinity.
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

SLUICE_INLINE constexpr float f32_from_f16(std::uint16_t value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000U) << 16;
  const std::uint32_t magnitude = value & 0x7FFFU;
  if (magnitude > kF16Infinity) {
    return float_of(sign | kF32QuietNan | (magnitude << 13));
  }
  if (magnitude == kF16Infinity) {
    return float_of(sign | kF32Infinity);
  }
  if (magnitude < 0x0400U) {
    // Subnormal: an integer times 2^-24; both factors and the product are exact normal floats.
    const float absolute = static_cast<float>(magnitude) * 0x1p-24F;
    return float_of(sign | bits_of(absolute));
  }
  return float_of(sign | ((magnitude << 13) + ((127U - 15U) << 23)));
}

/// Every NaN becomes 0x7FFF; from 65520 on the result is infinite.
SLUICE_INLINE constexpr std::uint16_t f16_from_f32(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t magnitude = bits & ~kF32Sign;
  const std::uint32_t sign = (bits & kF32Sign) >> 16;
  if (magnitude > kF32Infinity) {
    return kF16Nan;
  }
  std::uint32_t code = 0;
  if (magnitude >= 0x477F'F000U) {
    code = kF16Infinity;
  } else if (magnitude >= ((127U - 14U) << 23)) {
    code = shift_right_nearest_even(magnitude - ((127U - 15U) << 23), 13);
  } else if (magnitude >= ((127U - 25U) << 23)) {
    // Subnormal result, in units of 2^-24. The code after the largest is the smallest normal one.
    const std::uint32_t significand = (magnitude & kF32Mantissa) | kF32HiddenBit;
    code = shift_right_nearest_even(significand, 126 - static_cast<int>(magnitude >> 23));
  }
  return static_cast<std::uint16_t>(sign | code);
}

SLUICE_INLINE constexpr float f32_from_e4m3(std::uint8_t value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x80U) << 24;
  const std::uint32_t magnitude = value & 0x7FU;
  if (magnitude == kE4m3Nan) {
    return float_of(sign | kF32QuietNan);
  }
  if (magnitude < 0x08U) {
    const float absolute = static_cast<float>(magnitude) * 0x1p-9F;
    return float_of(sign | bits_of(absolute));
  }
  return float_of(sign | ((magnitude << 20) + ((127U - 7U) << 23)));
}

/// Saturates at 448, infinities too. Every NaN becomes 0x7F: its sign is dropped, and 0xFF is never
/// emitted (a reader may use it as a mark).
SLUICE_INLINE constexpr std::uint8_t e4m3_from_f32(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t magnitude = bits & ~kF32Sign;
  const std::uint32_t sign = (bits & kF32Sign) >> 24;
  if (magnitude > kF32Infinity) {
    return kE4m3Nan;
  }
  std::uint32_t code = 0;
  if (magnitude >= 0x43E0'0000U) {
    code = kE4m3MaxCode;
  } else if (magnitude >= ((127U - 6U) << 23)) {
    code = shift_right_nearest_even(magnitude - ((127U - 7U) << 23), 20);
  } else if (magnitude >= ((127U - 10U) << 23)) {
    // Subnormal result, in units of 2^-9. The code after the largest is the smallest normal one.
    const std::uint32_t significand = (magnitude & kF32Mantissa) | kF32HiddenBit;
    code = shift_right_nearest_even(significand, 141 - static_cast<int>(magnitude >> 23));
  }
  return static_cast<std::uint8_t>(sign | code);
}

}  // namespace sluice::numeric
