// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstdint>

namespace moe {

/// The upper half of a float: the element type of activations and weights.
using Bf16 = std::uint16_t;

inline float to_float(Bf16 value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

/// Rounds to nearest, ties to even. NaN stays NaN.
inline Bf16 to_bf16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return 0x7FFF;
  return static_cast<Bf16>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace moe
