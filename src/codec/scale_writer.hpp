// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "numeric/fp8_scale.hpp"
#include "numeric/host_device.hpp"
#include "sluice/types.hpp"

namespace sluice::codec {

/// Stores one scale of a row, which may lie at any address.
SLUICE_INLINE void write_scale(std::byte* scales, int index, float scale, ScaleForm form) {
  if (form == ScaleForm::ue8m0) {
    scales[index] = static_cast<std::byte>(numeric::ue8m0_from_f32(scale));
  } else {
    std::memcpy(scales + static_cast<std::size_t>(index) * sizeof scale, &scale, sizeof scale);
  }
}

/// Zeroes the bytes of the last int32 that no scale uses.
SLUICE_INLINE void finish_scales(std::byte* scales, int count, ScaleForm form) {
  if (form == ScaleForm::ue8m0) {
    for (int index = count; index % 4 != 0; ++index) {
      scales[index] = std::byte{0};
    }
  }
}

}  // namespace sluice::codec
