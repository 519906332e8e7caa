// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include "sluice/types.hpp"

namespace sluice::reference {

/// One token's row as it travels: encoded elements and, for fp8, its scales (f32 each, or int32
/// words of four exponents).
struct EncodedRow {
  std::vector<std::byte> elements;
  std::vector<std::byte> scales;
};

/// Element type of rows under a codec, and of its scales (none where there are none).
DType row_dtype(const Codec& codec);
DType scale_dtype(const Codec& codec);
/// Scale words of one row: ceil(hidden / group), for ue8m0 a quarter of that, rounded up.
std::size_t scale_words(const Codec& codec, std::size_t hidden);

/// Encodes `hidden` elements.
///
/// bf16, f16, f32: each element through f32, nearest even. fp8, per group of `codec.group`
/// elements (the last may be short): amax = the largest |x|, NaN ignored, at least 1e-4f;
///   f32    scale = amax / 448, q = e4m3(x * (448 / amax));
///   pow2   scale = the least power of two >= amax / 448 (an infinite one stays), q = e4m3(x /
///          scale);
///   ue8m0  the same scale as its biased exponent, at most 254, four to an int32, the first in the
///          lowest byte, unused bytes 0; q = e4m3(x / 2^(exponent - 127)).
/// Every named operation is one f32 operation; e4m3 rounds to nearest even and saturates.
EncodedRow encode_row(const Codec& codec, DType dtype, const std::byte* row, std::size_t hidden);

/// The values that a receiver reads from an encoded row: element, times its scale in f32.
std::vector<float> decode_row(const Codec& codec, const std::byte* elements,
                              const std::byte* scales, std::size_t hidden);

}  // namespace sluice::reference
