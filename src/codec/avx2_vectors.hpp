// SPDX-License-Identifier: MIT
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "numeric/convert.hpp"
#include "sluice/types.hpp"

/// Sixteen elements of a row in two vectors. Only for objects compiled for AVX2 + FMA + F16C.
namespace sluice::codec::avx2 {
namespace {

/// Sixteen elements as f32, in the order that the 16-bit unpack and pack instructions give for
/// free: `low` holds elements 0-3 and 8-11, `high` holds 4-7 and 12-15.
struct Sixteen {
  __m256 low;
  __m256 high;
};

[[gnu::always_inline]] inline const std::byte* element_address(const void* row, std::size_t index,
                                                               std::size_t bytes) {
  return static_cast<const std::byte*>(row) + index * bytes;
}

[[gnu::always_inline]] inline __m128i load_128(const std::byte* address) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(address));
}

[[gnu::always_inline]] inline __m256i load_256(const std::byte* address) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(address));
}

[[gnu::always_inline]] inline Sixteen sixteen_from_bf16(__m256i values) {
  const __m256i zero = _mm256_setzero_si256();
  return {_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, values)),
          _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, values))};
}

template <DType dtype>
[[gnu::always_inline]] inline Sixteen load_sixteen(const void* row, std::size_t index) {
  if constexpr (dtype == DType::bf16) {
    return sixteen_from_bf16(load_256(element_address(row, index, 2)));
  } else if constexpr (dtype == DType::f16) {
    // F16C widens subnormals whatever the control register says.
    const std::byte* const address = element_address(row, index, 2);
    const __m128i first = load_128(address);
    const __m128i second = load_128(address + 16);
    return {_mm256_cvtph_ps(_mm_unpacklo_epi64(first, second)),
            _mm256_cvtph_ps(_mm_unpackhi_epi64(first, second))};
  } else {
    const std::byte* const address = element_address(row, index, 4);
    const auto* const values = reinterpret_cast<const float*>(address);
    return {_mm256_loadu2_m128(values + 8, values), _mm256_loadu2_m128(values + 12, values + 4)};
  }
}

/// Nearest even bf16 in the low half of each 32-bit lane; every NaN is 0x7FFF.
[[gnu::always_inline]] inline __m256i bf16_bits(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(numeric::kBf16Nan), nan);
}

/// `streaming`: past the caches; the address is then aligned to 32 bytes.
template <bool streaming>
[[gnu::always_inline]] inline void store_256(std::byte* address, __m256i value) {
  if constexpr (streaming) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(address), value);
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(address), value);
  }
}

/// `streaming` holds for 16-bit elements only.
template <DType dtype, bool streaming = false>
[[gnu::always_inline]] inline void store_sixteen(void* row, std::size_t index, Sixteen values) {
  if constexpr (dtype == DType::bf16) {
    auto* const address = static_cast<std::byte*>(row) + index * 2;
    store_256<streaming>(address,
                         _mm256_packus_epi32(bf16_bits(values.low), bf16_bits(values.high)));
  } else if constexpr (dtype == DType::f16) {
    constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT;
    auto* const address = static_cast<std::byte*>(row) + index * 2;
    const __m128i low = _mm256_cvtps_ph(values.low, kNearestEven);
    const __m128i high = _mm256_cvtps_ph(values.high, kNearestEven);
    const __m256i halves =
        _mm256_set_m128i(_mm_unpackhi_epi64(low, high), _mm_unpacklo_epi64(low, high));
    const __m256i magnitude = _mm256_and_si256(halves, _mm256_set1_epi16(0x7FFF));
    const __m256i nan = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(numeric::kF16Infinity));
    store_256<streaming>(address,
                         _mm256_blendv_epi8(halves, _mm256_set1_epi16(numeric::kF16Nan), nan));
  } else {
    auto* const floats = reinterpret_cast<float*>(static_cast<std::byte*>(row) + index * 4);
    _mm256_storeu2_m128(floats + 8, floats, values.low);
    _mm256_storeu2_m128(floats + 12, floats + 4, values.high);
  }
}

}  // namespace
}  // namespace sluice::codec::avx2
