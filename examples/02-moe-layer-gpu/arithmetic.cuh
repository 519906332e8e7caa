// SPDX-License-Identifier: MIT
#pragma once

#include "bf16.hpp"

/// bf16.hpp and a part of model.cpp of example 01 for the GPU, step by step the same: the same bits
/// come out. That needs IEEE division and square roots and no fused multiply-adds but those written
/// as such, which is what the build asks nvcc for (-fmad=false and its defaults).
namespace moe {

__device__ inline float device_to_float(Bf16 value) {
  return __uint_as_float(static_cast<unsigned>(value) << 16);
}

/// Rounds to nearest, ties to even. NaN stays NaN.
__device__ inline Bf16 device_to_bf16(float value) {
  const unsigned bits = __float_as_uint(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return 0x7FFF;
  return static_cast<Bf16>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

__device__ inline float device_exponential(float x) {
  x = fminf(fmaxf(x, -87.0F), 87.0F);
  const float whole = rintf(x * 1.44269504F);
  const float rest = x - whole * 0.693147182F;
  float sum = 1.0F;
#pragma unroll
  for (int n = 7; n >= 1; --n) sum = 1.0F + sum * (rest / static_cast<float>(n));
  return ldexpf(sum, static_cast<int>(whole));
}

__device__ inline float device_silu(float x) {
  return x / (1.0F + device_exponential(-x));
}

}  // namespace moe
