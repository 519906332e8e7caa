// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "bf16.hpp"

namespace moe {

/// A hash of 64 bits: the finalizer known as splitmix64.
inline std::uint64_t mix(std::uint64_t value) noexcept {
  value += 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

/// Fills `out` with numbers uniform in (-limit, limit) that depend on `key` and the position only:
/// any process can make any part of the model without having made the rest.
inline void fill_uniform(std::uint64_t key, float limit, std::span<Bf16> out) noexcept {
  const float unit = limit / 32768.0F;
  const std::uint64_t base = mix(key);
  for (std::size_t i = 0; i < out.size(); i += 4) {
    // One hash has the bits of four numbers.
    const std::uint64_t bits = mix(base + i);
    for (std::size_t j = 0; j < 4 && i + j < out.size(); ++j) {
      const auto number = static_cast<std::int16_t>(bits >> (16 * j));
      out[i + j] = to_bf16((static_cast<float>(number) + 0.5F) * unit);
    }
  }
}

}  // namespace moe
