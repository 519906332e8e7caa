// SPDX-License-Identifier: MIT
#include <cstring>

#include "codec/avx2_rows.hpp"
#include "codec/avx2_vectors.hpp"
#include "codec/portable_parts.hpp"
#include "codec/scale_writer.hpp"
#include "numeric/fp8_scale.hpp"

namespace sluice::codec::avx2 {
namespace {

/// Elements of one step: one vector of codes. Every legal group is a multiple.
constexpr int kStep = 32;

template <DType dtype>
constexpr std::size_t kElementBytes = dtype == DType::f32 ? 4 : 2;

[[gnu::always_inline]] inline std::uint32_t largest_epi32(__m256i values) {
  __m128i largest =
      _mm_max_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
  largest = _mm_max_epi32(largest, _mm_shuffle_epi32(largest, 0b01'00'11'10));
  largest = _mm_max_epi32(largest, _mm_shuffle_epi32(largest, 0b10'11'00'01));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(largest));
}

/// The inverse of minpos finds the largest of eight 16-bit values in one instruction.
[[gnu::always_inline]] inline std::uint32_t largest_epi16(__m256i values) {
  const __m128i largest =
      _mm_max_epi16(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
  const __m128i all = _mm_set1_epi16(-1);
  const __m128i smallest = _mm_minpos_epu16(_mm_xor_si128(largest, all));
  return ~static_cast<std::uint32_t>(_mm_cvtsi128_si32(smallest)) & 0xFFFFU;
}

/// The largest magnitude of `count` (a multiple of 32) elements, by its bits in the row's format.
/// Infinities and NaN, which order above all numbers, are not treated specially.
template <DType dtype>
[[gnu::always_inline]] inline std::uint32_t largest_magnitude(const std::byte* row, int count) {
  constexpr std::size_t kBytes = kElementBytes<dtype>;
  const std::byte* const end = row + static_cast<std::size_t>(count) * kBytes;
  // Two chains, so that short groups do not wait for one.
  __m256i first = _mm256_setzero_si256();
  __m256i second = _mm256_setzero_si256();
  if constexpr (dtype == DType::f32) {
    const __m256i mask = _mm256_set1_epi32(0x7FFF'FFFF);
    for (; row != end; row += 64) {
      first = _mm256_max_epi32(first, _mm256_and_si256(load_256(row), mask));
      second = _mm256_max_epi32(second, _mm256_and_si256(load_256(row + 32), mask));
    }
    return largest_epi32(_mm256_max_epi32(first, second));
  } else {
    const __m256i mask = _mm256_set1_epi16(0x7FFF);
    for (; row != end; row += 64) {
      first = _mm256_max_epi16(first, _mm256_and_si256(load_256(row), mask));
      second = _mm256_max_epi16(second, _mm256_and_si256(load_256(row + 32), mask));
    }
    return largest_epi16(_mm256_max_epi16(first, second));
  }
}

/// The code of |x * multiplier| <= 448 (1 + 2^-22) in the low byte of each lane; above it, garbage.
///
/// With 2^e the power of two of the magnitude, but at least 2^-6, codes of that binade are 2^(e-3)
/// apart. Added to 2^(e+20) the magnitude is rounded by the adder to just that, nearest even, and
/// the sum's low bits are k = magnitude / 2^(e-3), 8 <= k <= 16 (less below 2^-6). The code is
/// 8 (e + 6) + k. The float 2^e shifted right by 20 is 8 (e + 127): what is too much, modulo 256,
/// is kCodeExcess.
[[gnu::always_inline]] inline __m256i code_bytes(__m256 x, __m256 multiplier) {
  const __m256 scaled = _mm256_mul_ps(x, multiplier);
  const __m256 magnitude =
      _mm256_and_ps(scaled, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFF'FFFF)));
  const __m256 exponent =
      _mm256_and_ps(scaled, _mm256_castsi256_ps(_mm256_set1_epi32(0x7F80'0000)));
  const __m256 power = _mm256_max_ps(exponent, _mm256_set1_ps(0x1p-6F));
  const __m256 rounded = _mm256_fmadd_ps(power, _mm256_set1_ps(0x1p20F), magnitude);
  return _mm256_add_epi32(_mm256_castps_si256(rounded),
                          _mm256_srli_epi32(_mm256_castps_si256(power), 20));
}
constexpr char kCodeExcess = static_cast<char>((8 * (127 - 6)) & 0xFF);

/// Thirty-two codes. Bytes [0-7, 16-23 | 8-15, 24-31], as the last pack leaves them.
struct Codes {
  __m256i low;   // 16-bit lanes: elements 0-15
  __m256i high;  // elements 16-31
  __m256i sign;  // the elements' signs in the top bits of bytes, in the order of the packed codes
};

[[gnu::always_inline]] inline __m256i pack_low_bytes(__m256i first, __m256i second) {
  const __m256i low_byte = _mm256_set1_epi32(0xFF);
  return _mm256_packus_epi32(_mm256_and_si256(first, low_byte), _mm256_and_si256(second, low_byte));
}

template <DType dtype>
[[gnu::always_inline]] inline Codes encode_32(const std::byte* row, __m256 multiplier) {
  if constexpr (dtype == DType::bf16) {
    // Even and odd elements are widened apart and interleaved again: no lane has to move.
    const __m256i top = _mm256_set1_epi32(static_cast<int>(0xFFFF'0000U));
    const __m256i low_byte = _mm256_set1_epi16(0xFF);
    __m256i codes[2];
    __m256i rows[2];
    for (int half = 0; half < 2; ++half) {
      rows[half] = load_256(row + half * 32);
      const __m256i even =
          code_bytes(_mm256_castsi256_ps(_mm256_slli_epi32(rows[half], 16)), multiplier);
      const __m256i odd =
          code_bytes(_mm256_castsi256_ps(_mm256_and_si256(rows[half], top)), multiplier);
      codes[half] = _mm256_and_si256(
          _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0b1010'1010), low_byte);
    }
    return {codes[0], codes[1], _mm256_packs_epi16(rows[0], rows[1])};
  } else {
    const Sixteen first = load_sixteen<dtype>(row, 0);
    const Sixteen second = load_sixteen<dtype>(row, 16);
    const __m256i low =
        pack_low_bytes(code_bytes(first.low, multiplier), code_bytes(first.high, multiplier));
    const __m256i high =
        pack_low_bytes(code_bytes(second.low, multiplier), code_bytes(second.high, multiplier));
    // Signed saturation keeps signs, of zeros too.
    const __m256i low_sign =
        _mm256_packs_epi32(_mm256_castps_si256(first.low), _mm256_castps_si256(first.high));
    const __m256i high_sign =
        _mm256_packs_epi32(_mm256_castps_si256(second.low), _mm256_castps_si256(second.high));
    return {low, high, _mm256_packs_epi16(low_sign, high_sign)};
  }
}

/// Encodes `count` (a multiple of 32) finite elements. The multiplier is positive, so that an
/// element's sign is its code's.
template <DType dtype>
[[gnu::always_inline]] inline void encode(const std::byte* row, int count, float multiplier,
                                          std::uint8_t* out) {
  const __m256 factor = _mm256_set1_ps(multiplier);
  for (int i = 0; i < count; i += kStep) {
    const Codes codes = encode_32<dtype>(row, factor);
    const __m256i magnitude =
        _mm256_sub_epi8(_mm256_packus_epi16(codes.low, codes.high), _mm256_set1_epi8(kCodeExcess));
    const __m256i sign = _mm256_and_si256(codes.sign, _mm256_set1_epi8(static_cast<char>(0x80)));
    const __m256i packed = _mm256_or_si256(magnitude, sign);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                        _mm256_permute4x64_epi64(packed, 0b11'01'10'00));
    row += kStep * kElementBytes<dtype>;
  }
}

template <DType dtype>
[[gnu::always_inline]] inline bool all_finite(std::uint32_t largest) {
  constexpr std::uint32_t kInfinity = dtype == DType::f32    ? numeric::kF32Infinity
                                      : dtype == DType::bf16 ? numeric::kF32Infinity >> 16
                                                             : numeric::kF16Infinity;
  return largest < kInfinity;
}

template <DType dtype>
[[gnu::always_inline]] inline float magnitude_as_f32(std::uint32_t bits) {
  if constexpr (dtype == DType::f32) {
    return numeric::float_of(bits);
  } else if constexpr (dtype == DType::bf16) {
    return numeric::f32_from_bf16(static_cast<std::uint16_t>(bits));
  } else {
    return numeric::f32_from_f16(static_cast<std::uint16_t>(bits));
  }
}

/// What a group's encoding needs to know of all its elements.
struct GroupScale {
  float scale;
  float multiplier;
  bool finite;
};

/// `count` is a multiple of 32.
template <DType dtype>
[[gnu::always_inline]] inline GroupScale scale_group(const std::byte* row, ScaleForm form,
                                                     int count) {
  const std::uint32_t largest = largest_magnitude<dtype>(row, count);
  const float amax = numeric::wider_amax(numeric::kAmaxFloor, magnitude_as_f32<dtype>(largest));
  const float scale = numeric::fp8_scale(amax, form);
  return {scale, numeric::fp8_multiplier(amax, scale, form), all_finite<dtype>(largest)};
}

/// Writes the codes of one group of `count` (a multiple of 32) elements and returns its scale.
template <DType dtype>
[[gnu::always_inline]] inline float encode_group(const std::byte* row, const GroupScale& group,
                                                 ScaleForm form, int count, std::uint8_t* out) {
  if (!group.finite) {
    // NaN or infinities: rare, and with rules of their own.
    return portable::quantise_group(row, dtype, form, 0, count, out);
  }
  encode<dtype>(row, count, group.multiplier, out);
  return group.scale;
}

/// A group that is shorter than the others: zeros appended to it, up to a multiple of 32, change
/// neither its amax nor its codes.
template <DType dtype>
float quantise_short_group(const std::byte* row, ScaleForm form, int count, std::uint8_t* out) {
  constexpr int kLargestGroup = 256;
  alignas(32) std::byte padded[kLargestGroup * 4];
  alignas(32) std::uint8_t codes[kLargestGroup];
  const std::size_t bytes = static_cast<std::size_t>(count) * kElementBytes<dtype>;
  const int padded_count = (count + kStep - 1) / kStep * kStep;
  std::memcpy(padded, row, bytes);
  std::memset(padded + bytes, 0,
              static_cast<std::size_t>(padded_count - count) * kElementBytes<dtype>);
  const GroupScale group = scale_group<dtype>(padded, form, padded_count);
  const float scale = encode_group<dtype>(padded, group, form, padded_count, codes);
  std::memcpy(out, codes, static_cast<std::size_t>(count));
  return scale;
}

template <DType dtype>
void quantise_row(const std::byte* row, const Codec& codec, int elements, std::uint8_t* out,
                  std::byte* out_scales) {
  const ScaleForm form = codec.scale_form;
  const std::size_t group_bytes = static_cast<std::size_t>(codec.group) * kElementBytes<dtype>;
  const int whole_groups = elements / codec.group;
  // Each group's scale is begun before its predecessor is encoded, which hides the reduction and
  // the divisions that it waits for.
  GroupScale next{};
  if (whole_groups > 0) {
    next = scale_group<dtype>(row, form, codec.group);
  }
  for (int group = 0; group < whole_groups; ++group) {
    const GroupScale current = next;
    if (group + 1 < whole_groups) {
      next = scale_group<dtype>(row + group_bytes, form, codec.group);
    }
    const float scale = encode_group<dtype>(row, current, form, codec.group, out);
    write_scale(out_scales, group, scale, form);
    row += group_bytes;
    out += codec.group;
  }
  int groups = whole_groups;
  const int left = elements - whole_groups * codec.group;
  if (left > 0) {
    const float scale = quantise_short_group<dtype>(row, form, left, out);
    write_scale(out_scales, groups, scale, form);
    ++groups;
  }
  finish_scales(out_scales, groups, form);
}

}  // namespace

void quantise(const void* source, DType source_dtype, const Codec& codec, int elements,
              std::uint8_t* out, std::byte* out_scales) {
  const auto* const row = static_cast<const std::byte*>(source);
  switch (source_dtype) {
    case DType::bf16: quantise_row<DType::bf16>(row, codec, elements, out, out_scales); break;
    case DType::f16: quantise_row<DType::f16>(row, codec, elements, out, out_scales); break;
    default: quantise_row<DType::f32>(row, codec, elements, out, out_scales); break;
  }
}

}  // namespace sluice::codec::avx2
