// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sluice/types.hpp"
#include "support/random.hpp"

namespace sluice::support {

enum class DataKind {
  ordinary,   ///< Magnitudes from 2^-7 to 2^3, both signs.
  specials,   ///< Also zeros of both signs, subnormals and the largest finite values; no NaN.
  not_finite  ///< Also infinities and NaN.
};

/// Any bytes but 0xFF: codes of e4m3 of one kind of NaN, or ue8m0 exponents.
std::vector<std::byte> draw_codes(std::size_t count, Random random);
/// `count` elements of bf16, f16 or f32.
std::vector<std::byte> draw_elements(DType dtype, std::size_t count, DataKind kind, Random random);
/// Weights in (0, 1); with specials also 0, -0 and negative ones.
std::vector<float> draw_weights(std::size_t count, DataKind kind, Random random);

}  // namespace sluice::support
