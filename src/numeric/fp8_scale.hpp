// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "numeric/convert.hpp"
#include "numeric/host_device.hpp"
#include "sluice/types.hpp"

/// The scale of one group of fp8 elements; docs/number-formats.md has the formulas.
namespace sluice::numeric {

/// No group has a smaller amax: a row of zeros gets a finite scale, and no multiplier overflows.
inline constexpr float kAmaxFloor = 1e-4F;
/// Exponents of ue8m0 end here; 255 would be NaN.
inline constexpr std::uint32_t kUe8m0Max = 254;

/// The larger of amax and |x|; NaN is ignored. Positive floats order as their bits do.
SLUICE_INLINE constexpr float wider_amax(float amax, float x) {
  const std::uint32_t magnitude = bits_of(x) & ~kF32Sign;
  return magnitude <= kF32Infinity && magnitude > bits_of(amax) ? float_of(magnitude) : amax;
}

/// The smallest power of two >= a positive normal value, by its exponent bits. Infinity stays.
SLUICE_INLINE constexpr float power_of_two_above(float value) {
  return float_of((bits_of(value) + kF32Mantissa) & kF32Infinity);
}

/// The 8-bit exponent of a power of two >= 2^-126; infinity gives 254.
SLUICE_INLINE constexpr std::uint8_t ue8m0_from_f32(float power) {
  const std::uint32_t exponent = bits_of(power) >> 23;
  return static_cast<std::uint8_t>(exponent < kUe8m0Max ? exponent : kUe8m0Max);
}

/// 2^(exponent - 127); 255 is NaN. Ours are never below 105.
SLUICE_INLINE constexpr float f32_from_ue8m0(std::uint8_t exponent) {
  if (exponent == 0) {
    return float_of(0x0040'0000U);
  }
  return exponent == 255 ? float_of(kF32QuietNan)
                         : float_of(static_cast<std::uint32_t>(exponent) << 23);
}

/// What a decoder multiplies a code by. `amax` is at least kAmaxFloor and not NaN.
SLUICE_INLINE constexpr float fp8_scale(float amax, ScaleForm form) {
  const float scale = amax / kE4m3Max;
  if (form == ScaleForm::f32) {
    return scale;
  }
  const float power = power_of_two_above(scale);
  return form == ScaleForm::pow2 ? power : f32_from_ue8m0(ue8m0_from_f32(power));
}

/// What an encoder multiplies an element by. In the forms with powers of two the definition divides
/// by the scale; with a finite amax the scale is in [2^-22, 2^120], so that its reciprocal is exact
/// (its exponent mirrored) and the product rounds the same real number as the quotient. An infinite
/// amax has no multiplier here: divide (see fp8_code).
SLUICE_INLINE constexpr float fp8_multiplier(float finite_amax, float scale, ScaleForm form) {
  return form == ScaleForm::f32 ? kE4m3Max / finite_amax : float_of((254U << 23) - bits_of(scale));
}

/// The code of one element, for every amax: the definition itself.
SLUICE_INLINE constexpr std::uint8_t fp8_code(float x, float amax, float scale, ScaleForm form) {
  return e4m3_from_f32(form == ScaleForm::f32 ? x * (kE4m3Max / amax) : x / scale);
}

}  // namespace sluice::numeric
