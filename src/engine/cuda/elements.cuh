// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "engine/cuda/packets.cuh"
#include "numeric/convert.hpp"
#include "numeric/fp8_scale.hpp"

/// Rows in registers: 16 bytes at a time.
namespace sluice::engine::cuda {

/// 16 bytes at `at`, whose elements have `kSize` bytes.
template <int kSize>
__device__ __forceinline__ uint4 load_bytes(const std::byte* at, bool aligned) {
  if (aligned) return load16(at);
  uint4 v;
  auto* words = reinterpret_cast<std::uint32_t*>(&v);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kSize == 4) {
      words[i] = *reinterpret_cast<const std::uint32_t*>(at + 4 * i);
    } else if constexpr (kSize == 1) {
      words[i] = 0;
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        words[i] |= static_cast<std::uint32_t>(at[4 * i + b]) << (8 * b);
      }
    } else {
      words[i] = *reinterpret_cast<const std::uint16_t*>(at + 4 * i) |
                 std::uint32_t{*reinterpret_cast<const std::uint16_t*>(at + 4 * i + 2)} << 16;
    }
  }
  return v;
}

template <int kSize>
__device__ __forceinline__ void store_bytes(std::byte* at, uint4 v, bool aligned) {
  if (aligned) return store16(at, v);
  const auto* words = reinterpret_cast<const std::uint32_t*>(&v);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kSize == 4) {
      *reinterpret_cast<std::uint32_t*>(at + 4 * i) = words[i];
    } else if constexpr (kSize == 2) {
      *reinterpret_cast<std::uint16_t*>(at + 4 * i) = static_cast<std::uint16_t>(words[i]);
      *reinterpret_cast<std::uint16_t*>(at + 4 * i + 2) =
          static_cast<std::uint16_t>(words[i] >> 16);
    } else {
#pragma unroll
      for (int b = 0; b < 4; ++b) at[4 * i + b] = static_cast<std::byte>(words[i] >> (8 * b));
    }
  }
}

__device__ __forceinline__ float low_half(std::uint32_t word, DType dtype) {
  return dtype == DType::bf16 ? __uint_as_float(word << 16)
                              : __half2float(__ushort_as_half(static_cast<unsigned short>(word)));
}
__device__ __forceinline__ float high_half(std::uint32_t word, DType dtype) {
  return dtype == DType::bf16
             ? __uint_as_float(word & 0xFFFF0000U)
             : __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)));
}

/// Two floats as two halves of `dtype`, nearest even, NaN as 0x7FFF: the same bits as
/// numeric::bf16_from_f32 and f16_from_f32 (tests/unit/cuda compares them all).
__device__ __forceinline__ std::uint32_t halves_of(float low, float high, DType dtype) {
  if (dtype == DType::bf16) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&v);
  }
  const __half2 v = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&v);
}

/// Eight elements of two bytes.
__device__ __forceinline__ void floats_of_halves(uint4 v, DType dtype, float (&out)[8]) {
  const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = low_half(words[i], dtype);
    out[2 * i + 1] = high_half(words[i], dtype);
  }
}
__device__ __forceinline__ uint4 halves_of_floats(const float (&in)[8], DType dtype) {
  return make_uint4(halves_of(in[0], in[1], dtype), halves_of(in[2], in[3], dtype),
                    halves_of(in[4], in[5], dtype), halves_of(in[6], in[7], dtype));
}

/// Eight elements from `index` on of a row of any type.
__device__ __forceinline__ void load_floats(const std::byte* row, int index, DType dtype,
                                            bool aligned, float (&out)[8]) {
  if (dtype != DType::f32) {
    floats_of_halves(load_bytes<2>(row + 2 * index, aligned), dtype, out);
    return;
  }
  const uint4 low = load_bytes<4>(row + 4 * index, aligned);
  const uint4 high = load_bytes<4>(row + 4 * index + 16, aligned);
  const std::uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] = __uint_as_float(words[i]);
}

/// What replaces an empty-looking word of a row: two NaN halves, or a NaN float.
__device__ __forceinline__ std::uint32_t nan_word(DType dtype) {
  return dtype == DType::f32 ? 0x7FFFFFFFU : 0x7FFF7FFFU;
}

/// Four codes of e4m3, saturating, nearest even, NaN as 0x7F: numeric::e4m3_from_f32.
__device__ __forceinline__ std::uint32_t e4m3_of(float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 890
  std::uint16_t low = 0;
  std::uint16_t high = 0;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  return low | std::uint32_t{high} << 16;
#else
  return numeric::e4m3_from_f32(a) | std::uint32_t{numeric::e4m3_from_f32(b)} << 8 |
         std::uint32_t{numeric::e4m3_from_f32(c)} << 16 |
         std::uint32_t{numeric::e4m3_from_f32(d)} << 24;
#endif
}

}  // namespace sluice::engine::cuda
