// SPDX-License-Identifier: MIT
#pragma once

#include "gpu_simulator/device.hpp"

struct __nv_bfloat162 {
  std::uint16_t low;
  std::uint16_t high;
};

inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return {sluice::numeric::bf16_from_f32(low), sluice::numeric::bf16_from_f32(high)};
}
