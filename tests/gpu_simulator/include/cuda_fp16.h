// SPDX-License-Identifier: MIT
#pragma once

#include "gpu_simulator/device.hpp"

struct __half {
  std::uint16_t bits;
};
struct __half2 {
  __half low;
  __half high;
};

inline __half __ushort_as_half(unsigned short bits) {
  return {bits};
}
inline float __half2float(__half v) {
  return sluice::numeric::f32_from_f16(v.bits);
}
inline __half2 __floats2half2_rn(float low, float high) {
  return {{sluice::numeric::f16_from_f32(low)}, {sluice::numeric::f16_from_f32(high)}};
}
